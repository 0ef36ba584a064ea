"""Choose the number of components by sign flips: parallel analysis of rows that stay at their sites.

    A o S,   where each entry of S is +1 or -1 with equal probability

Random signs keep the size of every entry and destroy what columns have in common. So the leading
eigenvalues of ``(A o S)'(A o S)`` show how large eigenvalues become without any structure, also if some
rows or columns are noisier than others. Component k counts while its eigenvalue exceeds the 95 %
quantile of the k-th eigenvalue over several flips.

Every product is a sum over sites, and all flips share their rounds. The signs are a secret of the site
(`Site.secret`): whoever knew them could solve for single rows.

Source: Hong, Sheng and Dobriban, "Selecting the number of components in PCA via random signflips"
(2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.errors import InputError
from fedpca.linalg.dense import orth, pack_triangle, top_eigen, unpack_triangle
from fedpca.linalg.krylov import MAX_KRYLOV_BYTES, KrylovSpace
from fedpca.linalg.parallel_analysis import (
    FEW_DRAWS,
    MANY_DRAWS,
    count_above,
    draws_for,
    quantile_floor,
)
from fedpca.linalg.rank_rules import Spectrum, parallel_analysis, settled
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question, question
from fedpca.protocol.script import Order, either, maybe, repeat, then
from fedpca.solvers.costs import triangle_is_cheaper

if TYPE_CHECKING:
    from fedpca.site.site import Site

MAX_ROUNDS = 20  # of block Lanczos on flipped rows; fewer than these find their largest eigenvalues
SETTLED = (
    3e-3  # the eigenvalues are known well enough once a round changes them by no more than this
)


@dataclass
class SignFlips:
    """The rank rule that compares the eigenvalues with those of the flipped rows of all sites.

    The sites are asked when the rule is first called, and again if it needs a longer floor. They must
    have their frame by then. A solver that sees summaries instead of sums has the column variances and
    needs no flips.
    """

    fed: Federation
    floor: Array = field(default_factory=lambda: np.empty(0))

    def __call__(self, spectrum: Spectrum) -> int | None:
        if spectrum.squares is not None:
            return parallel_analysis(spectrum)
        if not spectrum.values.size or spectrum.values[0] <= 0:
            return 1
        if len(self.floor) < min(len(spectrum.values), spectrum.n, spectrum.d):
            self.floor = flipped_floor(self.fed, spectrum.n, spectrum.d, len(spectrum.values))
        return settled(count_above(spectrum.values, self.floor), spectrum)

    def is_below(self, eigenvalues: Array) -> bool:
        """Return whether the floor is below the largest of the eigenvalues, or was not needed."""
        return not self.floor.size or bool(eigenvalues[0] > self.floor[0])


def flipped_floor(fed: Federation, n: float, d: int, p: int) -> Array:
    """Return the noise floor for at least p eigenvalues of A'A."""
    n_flips = draws_for(n, d)
    fed.sum(draw_signs, seed=np.int64(fed.rng().integers(2**63)))
    if triangle_is_cheaper(int(n), d, p):
        triangles = fed.sum(flipped_triangles, n_flips=np.int64(n_flips))["triangles"]
        return quantile_floor(
            np.array([np.maximum(top_eigen(unpack_triangle(t), d)[0], 0.0) for t in triangles])
        )
    found = leading_of_flips(partial(fed.sum, flipped_product), fed.rng(), n_flips, d, p)
    return quantile_floor(np.array([values for values, _ in found]))


def flips_order(plan: RunPlan, *parts: Question | Order, most: int = 1) -> Order:
    """Return the order in which a solver repeats its parts, with the rule's questions in between.

    Without parts, the rule is asked at most ``most`` times. Triangles give the whole floor, so they
    come last; products give a part of it, and may come again after a further look. Other rules than
    "auto" ask nothing.
    """
    again = repeat(*parts)
    if plan.parameters.get("n_components") != "auto":
        return again
    products = then(draw_signs, flipped_product, repeat(flipped_product, most=MAX_ROUNDS - 1))
    triangles = then(draw_signs, flipped_triangles)
    if not parts:
        return then(repeat(products, most=most - 1), maybe(either(products, triangles)))
    rounds = repeat(either(then(*parts), then(products, *parts)))
    return then(rounds, maybe(either(products, then(triangles, again))))


def leading_of_flips(
    ask: Callable[..., Arrays], rng: np.random.Generator, n_flips: int, d: int, p: int
) -> list[tuple[Array, Array]]:
    """Return p leading eigenvalues and eigenvectors of each flip, all found side by side.

    ``ask(Z=..., flips=...)`` returns the products of block Lanczos as ``Y``, like `flipped_product`.
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
    """The numbers from which a site draws its signs, the same throughout a run."""

    words: Array  # (w,)


@question(
    doing="preparing to find the number of components",
    asks={"seed": "int64"},
    answers={"n_sites": "int64"},
    remembers=True,
    reads_rows=False,
    check=lambda answer, _: None if answer["n_sites"] == 1 else "does not count as one site",
)
def draw_signs(site: Site, seed: Array) -> dict[str, Any]:
    """Let the site choose the secret that its signs are drawn from, unless it has done so."""
    if not site.remembers(FlipSecret):
        site.remember(FlipSecret(site.secret(int(seed))))
    return {"n_sites": np.int64(1)}


@question(
    doing="finding the number of components",
    asks={"n_flips": f"int64, one of {FEW_DRAWS} {MANY_DRAWS}"},
    answers={"triangles": "float64 flips triangle, semidefinite"},
    at_most={"flips": "n_flips"},
)
def flipped_triangles(site: Site, n_flips: Array) -> Arrays:
    """Send the upper triangle of ``(A o S)'(A o S)`` for each flip."""
    _refuse_too_many(int(n_flips))
    flips, d = range(int(n_flips)), site.standardized.n_features
    grams = np.zeros((len(flips), d, d))
    for flip, rows in _flipped(site, flips, site.standardized.dense_blocks()):
        grams[flip] += rows.T @ rows
    return {"triangles": np.array([pack_triangle(gram) for gram in grams])}


@question(
    doing="finding the number of components",
    asks={"Z": "float64 d k, orthonormal by flips", "flips": f"int64 k, 0..{MANY_DRAWS - 1}"},
    answers={"Y": "float64 d k"},
)
def flipped_product(site: Site, Z: Array, flips: Array) -> Arrays:
    """Send ``(A o S)'((A o S) Z)``, where ``flips`` says which S belongs to each column of Z."""
    return product_of_flips(site, Z, flips, site.standardized.dense_blocks())


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


def _refuse_too_many(n_flips: int) -> None:
    """Refuse more flips than a noise floor needs, since each tells a little more about the rows."""
    if not 1 <= n_flips <= MANY_DRAWS:
        raise InputError(
            f"n_flips={n_flips}: a site flips its signs 1 to {MANY_DRAWS} times in a run"
        )


def _flipped(
    site: Site, flips: Iterable[int], blocks: Iterable[Array], as_is: int | None = None
) -> Iterator[tuple[int, Array]]:
    """Yield each block of the site's rows with each flip of its signs."""
    words = site.recall(FlipSecret).words.tolist()
    for index, rows in enumerate(blocks):
        for flip in flips:
            bits = np.random.default_rng([*words, flip, index]).bytes(-(-rows.size // 8))
            signs = np.unpackbits(np.frombuffer(bits, np.uint8), count=rows.size)
            flipped = np.where(signs.reshape(rows.shape), rows, -rows)
            yield flip, rows if flip == as_is else flipped
