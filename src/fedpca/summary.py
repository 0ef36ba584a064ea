"""A mergeable summary of rows: how many, their mean, leading directions, and how much was left out.

With ``m`` the mean of ``n`` rows and ``S`` their scatter about it, a summary holds directions ``C``
(r x d, orthonormal) and singular values ``s`` with

    S = C' diag(s^2) C + T + E,    T and E positive semidefinite and bounded in norm,

T being what was cut off last and E what was cut off before (`fedpca.lowrank`). `update` and `merge`
keep this true: scatters add, the distance between two means is one more row, and what finds no room
goes into T. So whatever the order, the tree or the number of sites, the directions are those of the
pooled rows where E is nothing, and else within a bound that the summary states (`fedpca.bounds`).

Sources: Grammenos et al., "Federated PCA with adaptive rank estimation", Algorithms 2 and 3 (with the
factor that Algorithm 2 leaves out, and the mean that the paper takes to be zero).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self

import numpy as np

from fedpca import bounds
from fedpca.blocks import Centred, Mean, NotFinite, about_own_mean, naming_bad_values
from fedpca.errors import InputError
from fedpca.lowrank import LowRank
from fedpca.message import Array
from fedpca.rank import Spectrum
from fedpca.rows import matching_order, open_rows
from fedpca.scatter import Scatter

N_SPARE = 10  # directions carried beyond those wanted: what keeps truncation harmless


@dataclass(frozen=True, eq=False)
class Summary:
    """What is carried of rows that are gone.

    Parameters
    ----------
    at : Mean
        How many rows there are, and their mean.
    squares : ndarray of shape (d,)
        Sum of squares of each feature about its mean.
    known : LowRank
        Directions, singular values, and the bound on what they miss.
    n_components : int
        How many directions are wanted at the end.
    room : int
        How many are carried at most.
    centered : bool
        Whether directions are about the mean, or about zero.
    features : tuple of str, optional
        The names of the columns.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import Summary
    >>> rng = np.random.default_rng(0)
    >>> north, south = rng.normal(size=(50, 4)), rng.normal(size=(30, 4))
    >>> both = Summary.of(north, 2).merge(Summary.of(south, 2))
    >>> both.n, both.directions.shape, both.angle_bound() < 1e-12
    (80.0, (4, 4), True)
    """

    at: Mean
    squares: Array
    known: LowRank
    n_components: int
    room: int
    centered: bool = True
    features: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return (
            f"Summary of {self.n:,.10g} rows of {self.n_features} features: {self.n_components} "
            f"components wanted, {len(self.known.values)} directions carried"
        )

    @classmethod
    def empty(
        cls,
        n_features: int,
        n_components: int | None = None,
        *,
        n_spare: int = N_SPARE,
        center: bool = True,
        features: Sequence[str] | None = None,
    ) -> Self:
        """The summary of no rows, with room for ``n_components`` directions and some to spare."""
        d = n_features
        wanted = d if n_components is None else int(n_components)
        if not 1 <= wanted <= d:
            raise InputError(f"n_components={wanted} is not between 1 and the {d} features")
        if not isinstance(n_spare, Integral) or n_spare < 0:
            raise InputError(f"n_spare={n_spare!r} must be a whole number, 0 or more")
        names = None if features is None else tuple(features)
        room = min(d, wanted + int(n_spare))
        return cls(Mean.none(d), np.zeros(d), LowRank.none(d), wanted, room, bool(center), names)

    @classmethod
    def of(
        cls,
        X: Any,
        n_components: Any = None,
        *,
        n_spare: int = N_SPARE,
        center: bool = True,
        on_block: Callable[[int], None] | None = None,
    ) -> Summary:
        """The summary of rows, which are read once.

        Parameters
        ----------
        X : array, sparse matrix, data frame, table, or path of a file or folder
            The rows.
        n_components : int, float in (0, 1), {"auto", "mp", "gap"} or None
            How many directions are wanted, or the rule that finds it, as for `FederatedPCA`; a rule
            finds at most 100.
        n_spare : int
            How many more are carried.
        center : bool
            Whether they are about the mean, or about zero.
        on_block : callable, optional
            Called with the number of rows read so far, after each block.
        """
        from fedpca.summarize import summarize

        return summarize(X, n_components, n_spare=n_spare, center=center, on_block=on_block)

    def of_scatter(self, scatter: Scatter) -> Self:
        """The summary, with the room of this one, of all that is in a scatter matrix."""
        squares = _finite(scatter.squares())
        return replace(self, at=scatter.mean, squares=squares, known=scatter.leading(self.room))

    @property
    def n(self) -> float:
        """The number of rows; those that were discounted count less than one each."""
        return self.at.n

    @property
    def mean(self) -> Array:
        """The mean of the rows, ``(d,)``."""
        return self.at.high

    @property
    def directions(self) -> Array:
        """Orthonormal rows, the leading ones first, ``(r, d)``."""
        return self.known.directions

    @property
    def singular_values(self) -> Array:
        """Of the rows about the mean, along the directions, ``(r,)``."""
        return self.known.values

    @property
    def eigenvalues(self) -> Array:
        """Of the scatter about the mean, along the directions, ``(r,)``."""
        return np.asarray(self.known.values**2)

    @property
    def n_features(self) -> int:
        """The number of columns."""
        return len(self.squares)

    @property
    def energy(self) -> float:
        """The trace of the scatter: all squares about the mean, carried or not."""
        return float(self.squares.sum())

    @property
    def lost(self) -> float:
        """The part of the energy that is not along the directions carried."""
        return bounds.lost_energy(self.known, self.energy)

    @property
    def spectrum(self) -> Spectrum:
        """The leading eigenvalues and what is known of the others, for a rank rule.

        Where nothing but rounding is left of the energy, the next eigenvalue is known to be zero.
        """
        is_all = self.lost <= 10 * bounds.rounding(self.known)
        values = np.append(self.eigenvalues, 0.0) if is_all else self.eigenvalues
        return Spectrum(values, self.energy, self.n, self.n_features, is_all)

    def angle_bound(self, k: int | None = None) -> float:
        """The sine of the largest angle to the k leading directions of the pooled rows, at most.

        Rounding is counted. It is 1, and says nothing, where the gap behind the k-th is too small.
        """
        return bounds.angle_bound(self.known, self.energy, self._checked(k))

    def variance_bound(self, k: int | None = None) -> float:
        """How much more of the variance the k best directions could carry, at most, as a share."""
        return bounds.variance_bound(self.known, self.energy, self._checked(k))

    def _checked(self, k: int | None) -> int:
        k = self.n_components if k is None else k
        if not 1 <= k <= self.n_features:
            raise InputError(f"k={k} is not between 1 and the {self.n_features} features")
        return k

    def update(self, block: Any, *, forgetting: float = 1.0) -> Self:
        """The summary with more rows, those before them discounted by ``forgetting``.

        A block is anything that rows come in; one without rows changes nothing.
        """
        rows = open_rows(block)
        order = matching_order(self, rows, "the block, compared with the summary")
        found = self
        for part in rows.blocks():
            if not part.shape[0]:
                continue
            found, forgetting = found.discount(forgetting), 1.0
            ordered = part if order is None else part[:, order]
            with naming_bad_values(rows):
                found = found.append(*about_own_mean(ordered, center=self.centered))
        return found

    def append(self, mean: Mean, rows: Centred) -> Self:
        """The summary with more rows, which are given about a mean."""
        at, row = self.at.join(mean)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = _finite(self.squares + rows.squares() + _squares(row))
        known = self.known.append_block(rows, row, self.room)
        return replace(self, at=at, squares=squares, known=known)

    def merge(self, *others: Self, forgetting: float = 1.0, enhancing: float = 1.0) -> Self:
        """The summary of all the rows of this one and of others, at once.

        Singular values of this one count ``forgetting`` times, those of the others ``enhancing``
        times: a row of theirs then weighs the square of it. Columns are matched by name.
        """
        ours = self.discount(forgetting)
        theirs = [
            self.check_alike(other, f"summary {i}, compared with the first").discount(enhancing)
            for i, other in enumerate(others, start=2)
        ]
        room = max(summary.room for summary in (ours, *theirs))
        wanted = max(summary.n_components for summary in (ours, *theirs))
        with_rows = [summary for summary in (ours, *theirs) if summary.n]
        if len(with_rows) < 2:
            return replace((with_rows or [ours])[0], n_components=wanted, room=room)
        ours, *theirs = with_rows
        at, squares, rows = ours.at, ours.squares, [ours.directions[:0]]
        with np.errstate(over="ignore", invalid="ignore"):
            for other in theirs:
                at, row = at.join(other.at)
                squares = squares + other.squares + _squares(row)
                rows += [other.known.rows(), row]
            _finite(squares)
        below = Centred(np.vstack(rows))
        known = ours.known.append(below, below.rows[:0], room)
        missing = known.missing + sum(other.known.dropped for other in theirs)
        return replace(
            self,
            at=at,
            squares=squares,
            known=known._replace(missing=missing),
            n_components=wanted,
            room=room,
        )

    def check_alike(self, other: Self, where: str) -> Self:
        """The other summary with its columns in the order of these, or an error that says why not."""
        if not isinstance(other, Summary):
            raise InputError(f"{where}: a {type(other).__name__} is not a Summary")
        if self.centered != other.centered:
            ways = ("about zero", "about the mean")
            raise InputError(
                f"{where}: one is {ways[other.centered]} and the other {ways[self.centered]}"
            )
        order = matching_order(self, other, where)
        if order is None:
            return other
        at = Mean(other.n, other.at.high[order], other.at.low[order])
        known = other.known._replace(directions=other.directions[:, order])
        return replace(
            other, at=at, squares=other.squares[order], known=known, features=self.features
        )

    def discount(self, factor: float) -> Self:
        """The summary in which singular values count ``factor`` times, and rows its square."""
        if not factor > 0:
            raise InputError(f"a factor of {factor} leaves nothing of the rows; use one above 0")
        if factor == 1:
            return self
        at = self.at._replace(n=factor**2 * self.n)
        squares, known = factor**2 * self.squares, self.known.discount(factor)
        return replace(self, at=at, squares=squares, known=known)

    def truncate(self, room: int) -> Self:
        """The summary with at most ``room`` directions, now and later."""
        if room < 1:
            raise InputError(f"room={room} leaves no direction; use at least 1")
        return self.resize(min(self.n_components, int(room)), int(room))

    def resize(self, n_components: int, room: int) -> Self:
        """The summary with another number of directions wanted, and at most ``room`` carried."""
        known = self.known.truncate(room)
        return replace(self, known=known, n_components=n_components, room=room)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the summary to a file that `Summary.load` reads."""
        from fedpca.summary_file import write_summary

        write_summary(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Summary:
        """The summary in a file, after every check."""
        from fedpca.summary_file import read_summary

        return read_summary(path)


def merge_in_tree(summaries: Sequence[Summary], fan_in: int | None = None) -> Summary:
    """The summary of all, ``fan_in`` merged at a time, level by level; all at once by default."""
    if not summaries:
        raise InputError("there are no summaries to merge")
    if fan_in is not None and fan_in < 2:
        raise InputError(f"fan_in={fan_in} merges nothing; use at least 2")
    level = list(summaries)
    while len(level) > 1:
        step = fan_in or len(level)
        groups = [level[i : i + step] for i in range(0, len(level), step)]
        level = [first.merge(*others) for first, *others in groups]
    return level[0]


def _finite(squares: Array) -> Array:
    if not np.isfinite(squares.sum()):
        raise NotFinite
    return squares


def _squares(row: Array) -> Array:
    return np.asarray((row**2).sum(axis=0))
