"""Choose the number of components by sign flips: parallel analysis of rows that stay at their sites.

    E_k = A - A V_k V_k',   E_k o S,   where each entry of S is +1 or -1 with equal probability

`fedpca.linalg.parallel_analysis` counts the eigenvalues of A'A above those of rows whose columns
have nothing in common. It accounts for the variance of each column, but not for rows that are
noisier than others. It also compares the first direction of noise, which comes after k components,
with the (k+1)-th direction of unrelated columns. That direction is smaller if some columns are
noisier than others. So a second test has to confirm the components.

Random signs keep the size of every entry and destroy what columns have in common. So the largest
eigenvalue of the flipped E_k shows how large noise becomes once k components are removed. Every
eigenvalue of A'A above that size stands for a component. These components are removed next, and so
on until no more are found. Removing few components at a time is safe: what is left of the others
makes the flipped eigenvalues larger, never smaller. Removing directions of noise would not be safe.
At the end, the i-th eigenvalue after the k components is compared with the i-th eigenvalue of the
flipped E_k, because a few extreme entries may raise the first flipped eigenvalue above what is left
to find.

Every product is a sum over sites, and all flips share the same rounds. Each site keeps its signs
secret (`Site.secret`): anyone who knew them could solve for single rows. The coordinator chooses what
is removed. It could choose directions that cancel a column up to the rounding of single rows, so
products are rounded to the grid of what E is formed from (see `fedpca.linalg.grid`).

Sources: Hong, Sheng and Dobriban, "Selecting the number of components in PCA via random signflips"
(2020); for removing what was found, Dobriban and Owen, "Deterministic parallel analysis" (2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.errors import InputError, PolicyRefused
from fedpca.linalg.dense import gram_of, orth, pack_triangle, top_eigen, unpack_triangle
from fedpca.linalg.grid import norms_left, score_norms, secret_shares, to_grid
from fedpca.linalg.krylov import MAX_KRYLOV_BYTES, KrylovSpace
from fedpca.linalg.parallel_analysis import (
    FEW_DRAWS,
    MANY_DRAWS,
    count_above_columns,
    draws_for,
    noise_floor,
    quantile_floor,
)
from fedpca.linalg.rank_rules import Spectrum, parallel_analysis
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question, question
from fedpca.protocol.script import Order, either, maybe, most_looks, repeat, then
from fedpca.rows.columns import some_of
from fedpca.rows.gaps import ERROR
from fedpca.rows.rare import look_for_few
from fedpca.solvers.costs import triangle_is_cheaper
from fedpca.solvers.standardize import ColumnSums

if TYPE_CHECKING:
    from fedpca.site.site import Site

MAX_ROUNDS = 20  # most rounds of block Lanczos on flipped rows; the largest eigenvalues need few
# with this many rows, the chance that two of 10^7 sums of flips differ by one row's sign is 0.5 %
LEAST_ROWS = 60
AHEAD = 10  # eigenvalues to compare after the certain ones
MARGIN = 1.1  # components exceed noise by this factor, since the largest of a few flips varies
# the eigenvalues are known well enough once a round changes them by no more than this
SETTLED = 3e-3


@dataclass
class SignFlips:
    """The rank rule that compares the eigenvalues with those of the flipped rows of all sites.

    The sites are asked when the rule is called, unless earlier answers suffice. By then, the sites
    must have their frame, and the spectrum must have its vectors. A solver that sees summaries
    instead of sums has the column variances and needs no flips.
    """

    fed: Federation
    found_none: bool = False  # whether the rule kept one component only because there has to be one
    squares: Array | None = None  # (d,), the sum of squares of each column
    # noise floors after k components are removed, from column variances and from flips
    unrelated: dict[int, Array] = field(default_factory=dict)
    flipped: dict[int, Array] = field(default_factory=dict)

    def __call__(self, spectrum: Spectrum) -> int | None:
        if spectrum.squares is not None:
            return parallel_analysis(spectrum)
        values = spectrum.values
        if not values.size or values[0] <= 0:
            return 1
        if self.squares is None:
            self.squares = self.fed.sum(column_squares)["squares"]
        floor_of = partial(self._floor_of_columns, spectrum.n)
        n_above = count_above_columns(values, _vectors_of(spectrum), self.squares, floor_of)
        found = self._confirmed(spectrum, n_above)
        self.found_none = found == 0
        return None if found is None else max(1, found)

    def _confirmed(self, spectrum: Spectrum, n_above: int | None) -> int | None:
        """Return how many of the first ``n_above`` eigenvalues are above those of flipped rows.

        ``n_above=None`` means all eigenvalues so far. Return None if more eigenvalues are needed.
        """
        is_open = n_above is None and not spectrum.is_whole
        most = len(spectrum.values) if n_above is None else n_above
        values, k = spectrum.values[:most], 0
        while k < most:
            floor = self._floor_after(k, spectrum, AHEAD if is_open else min(AHEAD, most - k))
            if floor is None:
                return k
            certain = int((values > floor[0]).sum())
            if certain <= k:
                if is_open and most - k < AHEAD:
                    return None
                ahead = values[k : k + AHEAD][: len(floor)]
                above = np.flatnonzero(ahead > floor[: len(ahead)])
                certain = k + int(above.max(initial=-1)) + 1
                if certain < k + len(ahead):
                    return certain
            k = certain
        return None if is_open else k

    def _floor_of_columns(self, n: float, k: int, squares: Array, p: int) -> Array:
        """Return the noise floor for p eigenvalues after k components are taken out of the columns."""
        if len(self.unrelated.get(k, ())) < p:
            self.unrelated[k] = noise_floor(n, squares, p)
        return self.unrelated[k]

    def _floor_after(self, k: int, spectrum: Spectrum, p: int) -> Array | None:
        """Return the floor for p eigenvalues after the first k, or None if sites would not answer."""
        n, d = spectrum.n, spectrum.d
        if 2 * k > d:
            return None
        if k not in self.flipped and len(self.flipped) < most_looks(d):
            removed = np.ascontiguousarray(_vectors_of(spectrum)[:, :k])
            noise = flipped_floor(self.fed, n, removed, min(p, d))
            self.flipped[k] = MARGIN * fewer_directions(n, d, k) * noise
        return self.flipped.get(k)


def _vectors_of(spectrum: Spectrum) -> Array:
    if spectrum.vectors is None:
        raise InputError(
            "n_components='auto' removes components from the rows, so the solver must pass the "
            "components' vectors to the rule: Spectrum(values, ..., vectors=V)"
        )
    return spectrum.vectors


def flipped_floor(fed: Federation, n: float, removed: Array, p: int) -> Array:
    """Return the noise floors of the p or more leading eigenvalues of A'A outside a subspace.

    ``removed``, ``(d, k)``, holds an orthonormal basis of the subspace.
    """
    d = len(removed)
    n_flips = draws_for(n, d)
    fed.sum(draw_signs, seed=np.int64(fed.rng().integers(2**63)), removed=removed)
    if triangle_is_cheaper(int(n), d, p):
        triangles = fed.sum(flipped_triangles, n_flips=np.int64(n_flips))["triangles"]
        return quantile_floor(
            np.array([np.maximum(top_eigen(unpack_triangle(t), d)[0], 0.0) for t in triangles])
        )
    found = leading_of_flips(partial(fed.sum, flipped_product), fed.rng(), n_flips, d, p)
    return quantile_floor(np.array([values for values, _ in found]))


def fewer_directions(n: float, d: int, r: int) -> float:
    """Return the factor by which random signs shrink the leading eigenvalue of residual noise.

    Once r directions are removed, the squares of the residuals lie in fewer directions of rows and
    columns. Random signs spread these squares over all directions again.
    """
    if min(n - 1, d) <= r:
        return 1.0
    edges = (np.sqrt(n - 1 - r) + np.sqrt(d - r)) / (np.sqrt(n - 1) + np.sqrt(d))
    return float(edges**2 * (n - 1) * d / ((n - 1 - r) * (d - r)))


def flips_order(plan: RunPlan, *parts: Question | Order) -> Order:
    """Return the order in which a solver repeats its parts, with the rule's questions in between.

    The rule removes more components each time; `Script.looks` bounds how many times it may ask
    `draw_signs`. Rules other than "auto" ask nothing.
    """
    again = repeat(*parts)
    if plan.parameters.get("n_components") != "auto":
        return again
    products = then(flipped_product, repeat(flipped_product, most=MAX_ROUNDS - 1))
    flips = then(draw_signs, either(products, flipped_triangles))
    return then(again, maybe(column_squares, again, repeat(flips, again)))


def leading_of_flips(
    ask: Callable[..., Arrays], rng: np.random.Generator, n_flips: int, d: int, p: int
) -> list[tuple[Array, Array]]:
    """Return the p leading eigenvalues and eigenvectors of each flip; all flips share their rounds.

    ``ask(Z=..., flips=...)`` returns the products that Lanczos needs as ``Y``, like
    `flipped_product`.
    """
    max_columns = MAX_KRYLOV_BYTES // (8 * d)
    spaces = [KrylovSpace(orth(rng.standard_normal((d, p))), max_columns) for _ in range(n_flips)]
    values = [np.zeros(p) for _ in spaces]
    moving = list(range(n_flips))
    for _ in range(MAX_ROUNDS):
        blocks = [spaces[flip].Q for flip in moving]
        widths = [block.shape[1] for block in blocks]
        flips = np.repeat(np.array(moving), widths)
        products = ask(Z=np.hstack(blocks), flips=flips)["Y"]
        still = []
        for flip, Y in zip(moving, np.split(products, np.cumsum(widths)[:-1], axis=1), strict=True):
            space, before = spaces[flip], values[flip]
            space.extend(Y)
            theta = space.rayleigh_ritz(p).wanted
            values[flip] = np.pad(theta, (0, p - len(theta)))
            changed = float(np.abs(values[flip] - before).sum())
            if not space.is_invariant and changed > SETTLED * float(values[flip].sum()):
                still.append(flip)
                if space.is_full(space.Q.shape[1]):
                    space.restart()
        moving = still
        if not moving:
            break
    return [(found, space.vectors()) for found, space in zip(values, spaces, strict=True)]


@dataclass(frozen=True)
class FlipSecret:
    """The numbers from which a site draws its signs, and what it first removes from its rows."""

    words: Array  # (w,)
    removed: Array  # (d, k), orthonormal


@question(
    doing="preparing to find the number of components",
    answers={"squares": "float64 d, squares"},
    times_energy=lambda _: 1.0,
)
def column_squares(site: Site) -> Arrays:
    """Send the sum of squares of each standardized column."""
    return {"squares": site.standardized.squares()}


@question(
    doing="preparing to find the number of components",
    asks={"seed": "int64", "removed": "float64 d k, orthonormal"},
    answers={"n_sites": "int64"},
    remembers=True,
    reads_rows=False,
    needs="auto",
    check=lambda answer, _: None if answer["n_sites"] == 1 else "does not count as one site",
)
def draw_signs(site: Site, seed: Array, removed: Array) -> dict[str, Any]:
    """Let the site choose the secret that its signs are drawn from, and remember what to remove.

    The secret is new each time. If the signs stayed the same while different directions were
    removed, the products would together reveal more than each product does.

    A few rows have few combinations of signs. Anyone who collects all combinations over many runs
    can compute the rows, although the signs are secret. A lying coordinator can also choose k
    directions whose removal makes k + 1 columns equal. If there are more of these columns than
    rows, their products are a matrix of low rank, whose range holds the signs of each row. So a
    site with a policy refuses if it has few rows, or fewer rows than twice the number of
    directions. A column may be zero in all other rows, so the same holds for the rows in which a
    column differs from its most frequent value. A site also removes at most half of all directions:
    with all but one removed, flips would reveal moments of the rows along a direction of the
    coordinator's choice.
    """
    d, k = removed.shape
    if not site.policy.is_open and not site.is_in_process:
        if 2 * k > d:
            raise PolicyRefused(
                f"field 'removed' has {k} columns; it must have at most half of {d}, the number of "
                "features"
            )
        _refuse_few(site, k)
    site.remember(FlipSecret(site.secret(int(seed)), removed))
    return {"n_sites": np.int64(1)}


def _refuse_few(site: Site, k: int) -> None:
    """Refuse if few rows of a site are used in this run, or differ in a column from the others."""
    missing = site.recall(ColumnSums).missing if site.remembers(ColumnSums) else ERROR
    most_removed = max(LEAST_ROWS, k)
    few = look_for_few(site.rows, most_removed, missing)
    least = max(LEAST_ROWS, 2 * k)
    way_out = (
        "which n_components='auto' could reveal over many runs; use a number of components, or another "
        "rule such as 'gap'"
    )
    if few.n_rows < least:
        raise PolicyRefused(f"the site has fewer than {least} rows, {way_out}")
    if few.rare:
        raise PolicyRefused(
            f"in columns {some_of(few.rare)}, fewer than {most_removed} rows differ from the most "
            f"frequent value, {way_out}, or leave these columns out at all sites with --drop"
        )


@question(
    doing="finding the number of components",
    asks={"n_flips": f"int64, one of {FEW_DRAWS} {MANY_DRAWS}"},
    answers={"triangles": "float64 flips triangle, semidefinite"},
    at_most={"flips": "n_flips"},
)
def flipped_triangles(site: Site, n_flips: Array) -> Arrays:
    """Send the upper triangle of ``(E o S)'(E o S)`` for each flip; E is what is left of A."""
    _refuse_too_many(int(n_flips))
    flips, d = range(int(n_flips)), site.standardized.n_features
    grams = np.zeros((len(flips), d, d))
    for flip, rows in _flipped(site, flips, site.standardized.dense_blocks()):
        grams[flip] += gram_of(rows)
    norms, n_terms = _grid_left(site)
    shares = _shares(site, (d, d))
    for gram in grams:
        to_grid(gram, norms, norms, n_terms, shares)
    return {"triangles": np.array([pack_triangle(gram) for gram in grams])}


@question(
    doing="finding the number of components",
    asks={"Z": "float64 d k, orthonormal by flips", "flips": f"int64 k, 0..{MANY_DRAWS - 1}"},
    answers={"Y": "float64 d k"},
)
def flipped_product(site: Site, Z: Array, flips: Array) -> Arrays:
    """Send ``(E o S)'((E o S) Z)``, where ``flips`` says which S belongs to each column of Z."""
    Y = product_of_flips(site, Z, flips, site.standardized.dense_blocks())["Y"]
    norms, n_terms = _grid_left(site)
    shares = _shares(site, Y.shape, Z, flips)
    return {"Y": to_grid(Y, norms, score_norms(norms, Z), n_terms + len(Z), shares)}


def product_of_flips(
    site: Site, Z: Array, flips: Array, blocks: Iterable[Array], *, as_is: int | None = None
) -> Arrays:
    """Return the answer of `flipped_product` for rows in blocks; flip ``as_is`` changes no sign."""
    _refuse_too_many(int(flips.max(initial=0)) + 1)
    Y = np.zeros_like(Z)
    columns = {int(flip): np.flatnonzero(flips == flip) for flip in np.unique(flips)}
    for flip, rows in _flipped(site, columns, blocks, as_is):
        Y[:, columns[flip]] += rows.T @ (rows @ Z[:, columns[flip]])
    return {"Y": Y}


def _grid_left(site: Site) -> tuple[Array, float]:
    """Return the norms that E's columns are formed from, and the number of terms in an entry of E."""
    V = site.recall(FlipSecret).removed
    norms = np.sqrt(site.standardized.squares())
    return norms_left(norms, V), sum(V.shape) if V.size else 1


def _shares(site: Site, shape: tuple[int, ...], *asked: Array) -> Array | None:
    """Return what moves the points between two steps, the same for all flips of a secret."""
    if site.rounding_secret() is None:
        return None
    return secret_shares(site.recall(FlipSecret).words.tobytes(), shape, *asked)


def _refuse_too_many(n_flips: int) -> None:
    """Refuse more flips than a noise floor needs, since each flip reveals a little about the rows."""
    if not 1 <= n_flips <= MANY_DRAWS:
        raise InputError(
            f"n_flips={n_flips} must be from 1 to {MANY_DRAWS}; a site draws no more in a run"
        )


def _flipped(
    site: Site, flips: Iterable[int], blocks: Iterable[Array], as_is: int | None = None
) -> Iterator[tuple[int, Array]]:
    """Yield what is left of each block of rows, with each flip of its signs."""
    secret = site.recall(FlipSecret)
    words, V = secret.words.tolist(), secret.removed
    for index, block in enumerate(blocks):
        rows = block - (block @ V) @ V.T if V.size else block
        for flip in flips:
            bits = np.random.default_rng([*words, flip, index]).bytes(-(-rows.size // 8))
            signs = np.unpackbits(np.frombuffer(bits, np.uint8), count=rows.size)
            flipped = np.where(signs.reshape(rows.shape), rows, -rows)
            yield flip, rows if flip == as_is else flipped
