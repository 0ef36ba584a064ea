"""Make up the rows on which a program is rehearsed, since nothing is known about the sites' rows.

    A_i = R_i S^(-1/2) diag(sqrt(variance)),  S = sum_i R_i'R_i       sites that are alike
    A_i = R_i diag(sqrt(variance)) [E  Q_i]'                          sites that share only E
    A_i = R_i diag(sqrt(variance)) Q' + offset + outliers             rows with outliers

R_i is like normal rows. The first kind has exactly the given variances along the components of all
rows. Drawn rows leave out S^(-1/2), so that their variances have sampling errors, as those of real rows
have. Q and Q_i are random. With many features, only some of the variances are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from scipy.linalg import helmert

from fedpca.arrays import Array
from fedpca.linalg.dense import orth
from fedpca.site.site import Site

MAX_ENTRIES = 1 << 18  # entries of all rows with outliers
OUTLIER_SHARE = 0.05  # share of the entries that are outliers
OUTLIER_SIZE = 10.0  # largest size of an outlier, in root mean squares of the entries
OFFSET = 3.0  # typical offset of a column, in root mean squares of the entries

Rows = dict[str, Array]


class Party(NamedTuple):
    """A site as a plan counts it: its name, its number of rows, and how many directions it keeps."""

    name: str
    rows: int
    n_local: int = 0


@dataclass(frozen=True)
class Cast:
    """The made-up sites that stand for real ones.

    ``times_k`` is how many times as many components the real fit has.
    """

    made_up: Sequence[Party]
    side: int
    times_k: float = 1.0

    @classmethod
    def of(cls, parties: Sequence[Party], side: int, most: int, times_k: float = 1.0) -> Cast:
        """Choose sites to make up: one of each kind, and the largest ones, but only so many.

        Sites with more rows than made-up features are alike.
        """
        in_order = sorted(parties, key=lambda party: -party.rows)
        kinds: dict[tuple[int, int], Party] = {}
        for party in in_order:
            kinds.setdefault(_kind(party, side), party)
        chosen = list(kinds.values())
        if len(chosen) > most:
            chosen = [chosen[i] for i in np.linspace(0, len(chosen) - 1, most).astype(int)]
        others = [party for party in in_order if party not in chosen]
        # sites with few rows need others beside them, so that all components are there
        while others and (len(chosen) < most or _rank(chosen, side) < side):
            chosen.append(others.pop(0))
            if len(chosen) >= most + side:
                break
        return cls(chosen, side, times_k)

    @property
    def rows(self) -> dict[str, int]:
        """Return the number of rows that each made-up site stands for."""
        return {party.name: party.rows for party in self.made_up}

    def acting_for(self, party: Party) -> tuple[Party, Party]:
        """Return the made-up sites next to a real one in size, the larger one first."""
        own = [each for each in self.made_up if each.n_local == party.n_local] or self.made_up
        rows = _kind(party, self.side)[0]
        sizes = {_kind(each, self.side)[0]: each for each in reversed(own)}
        above = min((n for n in sizes if n >= rows), default=max(sizes))
        below = max((n for n in sizes if n <= rows), default=min(sizes))
        return sizes[above], sizes[below]


def _kind(party: Party, side: int) -> tuple[int, int]:
    return min(party.rows, side + 1), party.n_local


def _rank(parties: Sequence[Party], side: int) -> int:
    return sum(min(party.rows, side) for party in parties)


def alike(
    rng: np.random.Generator,
    rows: Mapping[str, int],
    variances: Array,
    *,
    center: bool,
    scale: bool,
    is_drawn: bool,
) -> Rows:
    """Return rows of sites that differ only by sampling errors; ``rows`` counts those of real sites.

    A site with more rows than features has one more row than features, with the second moments of so
    many rows. With ``center``, the mean over all sites is zero. With ``scale``, columns are as long.
    """
    rank = sum(min(n, len(variances)) for n in rows.values()) - center
    n_positive = min(int(np.count_nonzero(variances)), max(1, rank))
    kept = variances[:n_positive]
    parts = [_normal(rng, n, n_positive, center=center) for n in rows.values()]
    if center:
        mean = sum(part.sum(axis=0) for part in parts) / max(1, sum(map(len, parts)))
        parts = [part - mean for part in parts]
    spread = np.diag(np.sqrt(kept))
    if not is_drawn:
        values, U = np.linalg.eigh(np.sum([part.T @ part for part in parts], axis=0))
        spread = (U / np.sqrt(values)) @ U.T @ spread
    whole = np.pad(spread, ((0, 0), (0, len(variances) - n_positive)))
    if scale:
        whole = whole @ _levelling(np.sqrt(variances))
    return {name: part @ whole for name, part in zip(rows, parts, strict=True)}


def sharing(
    rng: np.random.Generator, rows: Mapping[str, int], variances: Array, n_shared: int
) -> Rows:
    """Return rows of sites that have the first directions in common and nothing else."""
    p, made_up = len(variances), {}
    for name, n in rows.items():
        Q = orth(rng.standard_normal((p - n_shared, p - n_shared)))
        R = like_rows(rng, n, p)
        spread = R * np.sqrt(variances * len(R) / max(n, 1))
        made_up[name] = np.hstack([spread[:, :n_shared], spread[:, n_shared:] @ Q.T])
    return made_up


def with_outliers(rng: np.random.Generator, rows: Mapping[str, int], variances: Array) -> Rows:
    """Return rows with an offset in each column, and outliers in a twentieth of the entries."""
    p, made_up = len(variances), {}
    Q, offset = orth(rng.standard_normal((p, p))), rng.standard_normal(p)
    size = np.sqrt(variances.sum() / p)
    for name, n_rows in rows.items():
        n = min(n_rows, max(2, MAX_ENTRIES // (p * len(rows))))
        X = (rng.standard_normal((n, p)) * np.sqrt(variances)) @ Q.T + OFFSET * size * offset
        is_outlier = rng.random((n, p)) < OUTLIER_SHARE
        X[is_outlier] += size * rng.uniform(-OUTLIER_SIZE, OUTLIER_SIZE, is_outlier.sum())
        made_up[name] = X
    return made_up


def as_sites(
    rows: Rows, names: Sequence[str] | None, *, in_order: bool = True, weighted: bool = False
) -> dict[str, Site]:
    """Return sites with these rows; unless ``in_order``, the first has its columns in another order."""
    made_up = {}
    for i, (name, X) in enumerate(rows.items()):
        table: object = X
        if names is not None:
            step = 1 if i or in_order else -1
            table = pa.table({column: X[:, j] for j, column in list(enumerate(names))[::step]})
        made_up[name] = Site(table, name=name, weight=np.ones(len(X)) if weighted else None)
    return made_up


def names_like(names: Sequence[str], n_bytes: int, p: int) -> list[str]:
    """Return p names that take as many bytes in a message as all names, ``n_bytes``, do."""
    kept = list(names[:p])
    if p < len(names):
        from fedpca.solvers.common_features import names_to_bytes

        kept[-1] += "x" * (n_bytes - names_to_bytes(kept).nbytes)
    return kept


def evenly_thinned(variances: Array, n_leading: int, side: int) -> Array:
    """Return all variances, or the leading ones and some others if there are more than ``side``."""
    if len(variances) <= side:
        return variances
    rest = variances[n_leading:]
    at = ((np.arange(side - n_leading) + 0.5) * len(rest) / (side - n_leading)).astype(int)
    return np.concatenate([variances[:n_leading], rest[at]])


def like_rows(rng: np.random.Generator, n: int, p: int) -> Array:
    """Return at most p rows whose second moments are distributed like those of n normal rows.

    The triangular factor of normal rows has independent entries (Bartlett).
    """
    if n <= p:
        return rng.standard_normal((n, p))
    R = np.triu(rng.standard_normal((p, p)), 1)
    R[np.diag_indices(p)] = np.sqrt(rng.chisquare(n - np.arange(p)))
    return R


def _normal(rng: np.random.Generator, n: int, p: int, *, center: bool) -> Array:
    """Return at most p + 1 rows like n normal ones; if there are fewer than n, their mean is zero."""
    if n <= p + center:
        return rng.standard_normal((n, p))
    if not center:
        return like_rows(rng, n, p)
    return np.asarray(helmert(p + 1).T @ like_rows(rng, n - 1, p))


def _levelling(lengths: Array) -> Array:
    """Return a rotation after which columns of these lengths, orthogonal to each other, are as long.

    Each step rotates the shortest and the longest column, so that the former gets the mean length.
    """
    A, Q = np.diag(lengths), np.eye(len(lengths))
    mean = float(np.mean(lengths**2))
    for _ in range(len(lengths) - 1):
        squares = np.einsum("ij,ij->j", A, A)
        i, j = int(np.argmin(squares)), int(np.argmax(squares))
        low, high, c = squares[i] - mean, squares[j] - mean, A[:, i] @ A[:, j]
        if high <= 1e-12 * mean:
            break
        t = (np.sqrt(max(c * c - low * high, 0.0)) - c) / high
        turn = np.array([[1.0, -t], [t, 1.0]]) / np.sqrt(1 + t * t)
        A[:, [i, j]], Q[:, [i, j]] = A[:, [i, j]] @ turn, Q[:, [i, j]] @ turn
    return Q
