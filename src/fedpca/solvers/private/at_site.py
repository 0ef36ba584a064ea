"""Answer with noise: what a site sends in a differentially private run.

    sum q(x),   sum q(x) q(x)',   sum q(x) w(x)'   each with random whole numbers added

A row x counts as a vector q(x) of whole numbers with ``|q(x)| <= R`` (`fedpca.rows.bounded`), so one
more row changes these sums by at most R or R^2. The noise of a sum depends only on the declared plan,
never on a question's fields. It is drawn from the system's randomness, not from a seed.

In a triangle, an entry off the diagonal stands for two entries of the matrix. The noise there has half
the variance. So a row's part in mu^2 is ``(sum q_j^2)^2 / s``, and no direction is better protected
than another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import InputError
from fedpca.linalg.blas_threads import threads_for
from fedpca.privacy.discrete_gaussian import discrete_gaussian
from fedpca.privacy.gaussian import MEAN_SHARE, Privacy, around_point, noise_variance
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.rows.bounded import RADIUS, bounded_blocks
from fedpca.rows.weighted import WeightedRows
from fedpca.solvers.common_features import own_order

if TYPE_CHECKING:
    from fedpca.site.site import Site

AROUND_TIMES = 2.0  # the row bound about a guessed center, as a multiple of that about the mean
COUNT_UNIT = RADIUS // 4  # what a row adds to the count; small, so that the count costs little
SUM_SENSITIVITY2 = RADIUS**2 + COUNT_UNIT**2
SCATTER_SENSITIVITY2 = RADIUS**4
ENERGY_SHARE = 4  # the energy is divided by this, so that it costs less than the product
BLOCK_BITS = 52 - RADIUS.bit_length()  # bits of an entry in a block by which rows are multiplied
PRODUCT_SENSITIVITY2 = RADIUS**4 + RADIUS**4 // ENERGY_SHARE**2


@dataclass(frozen=True)
class CommonOrder:
    """The order of a site's columns, which the site remembers."""

    order: Array | None = None  # (d,), each common feature's column; None if the order is the same


def spends_mean(plan: RunPlan) -> float:
    """Return the mu^2 that the count and the mean spend."""
    return Privacy.of(plan).spent(MEAN_SHARE)


def spends_scatter(plan: RunPlan) -> float:
    """Return the mu^2 that the scatter spends."""
    return Privacy.of(plan).spent(1 - MEAN_SHARE)


def spends_product(plan: RunPlan) -> float:
    """Return the mu^2 that one of several products spends."""
    privacy = Privacy.of(plan)
    return privacy.spent(privacy.product_share)


def sum_variance(plan: RunPlan) -> int:
    """Return the variance of each site's noise in the count and the sums."""
    return noise_variance(SUM_SENSITIVITY2, spends_mean(plan), Privacy.of(plan).n_noisy(plan))


def scatter_variance(plan: RunPlan) -> int:
    """Return the variance of each site's noise on the diagonal of the scatter."""
    n_noisy = Privacy.of(plan).n_noisy(plan)
    return 2 * noise_variance(SCATTER_SENSITIVITY2 / 2, spends_scatter(plan), n_noisy)


def product_variance(plan: RunPlan) -> int:
    """Return the variance of each site's noise in a product and in the energy."""
    n_noisy = Privacy.of(plan).n_noisy(plan)
    return noise_variance(PRODUCT_SENSITIVITY2, spends_product(plan), n_noisy)


@question(
    doing="counting rows and adding up columns, with noise",
    asks={"features": "uint8 bytes"},
    answers={"n": "int64", "total": "int64 d"},
    remembers=True,
    spends=spends_mean,
)
def noisy_count_and_sum(site: Site, features: Array) -> Arrays:
    """Count the rows and sum each column about the guessed center, in the order of ``features``."""
    _refuse_weights(site)
    order = own_order(site, features)
    site.remember(CommonOrder(order))
    privacy, d = Privacy.of(site.plan), site.rows.n_features
    total = np.zeros(1 + d, np.int64)
    center, radius = around_point(privacy, d), AROUND_TIMES * privacy.row_bound
    for block in bounded_blocks(site.rows, center, radius, order):
        total[0] += COUNT_UNIT * len(block)
        total[1:] += block.sum(axis=0).astype(np.int64)
    total += _noise(sum_variance(site.plan), total.size)
    return {"n": total[0], "total": total[1:]}


@question(
    doing="computing the covariance, with noise",
    asks={"mean": "float64 d, fixed"},
    answers={"triangle": "int64 triangle"},
    remembers=True,
    spends=spends_scatter,
    work="scatter",
)
def noisy_scatter(site: Site, mean: Array) -> Arrays:
    """Send the triangle of the scatter about the mean, with each row shortened to the bound."""
    d = len(mean)
    scatter = np.zeros((d, d), np.int64)
    for block in _rows_about(site, mean):
        with threads_for(block):
            scatter += (block.T @ block).astype(np.int64)
    triangle = scatter[np.tril_indices(d)]
    variance = scatter_variance(site.plan)
    diagonal = np.cumsum(np.arange(1, d + 1)) - 1
    own = triangle[diagonal] + _noise(variance, d)
    triangle += _noise(variance // 2, triangle.size)
    triangle[diagonal] = own
    return {"triangle": triangle}


@question(
    doing="improving the components, with noise",
    asks={"mean": "float64 d, fixed", "Z": "float64 d k, orthonormal"},
    answers={"Y": "int64 d k", "energy": "int64"},
    remembers=True,
    spends=spends_product,
)
def noisy_product(site: Site, mean: Array, Z: Array) -> dict[str, Any]:
    """Send the product of the scatter with an orthonormal block, and the sum of squares.

    The scores of a row are put on the grid like the row itself. The block is rounded first, so that
    scores are exact sums and do not depend on where in the table a row is.
    """
    d, k = Z.shape
    if float((Z * Z).sum(axis=0).max(initial=0.0)) > 1.001:
        raise InputError("field 'Z' has columns longer than 1; send an orthonormal block")
    steps = np.rint(Z * 2.0**BLOCK_BITS)  # no sum of products exceeds |q| |z|
    Y, energy = np.zeros((d, k), np.int64), 0
    for block in _rows_about(site, mean):
        with threads_for(block):
            scores = (block @ steps) * 2.0**-BLOCK_BITS
            lengths = np.sqrt((scores * scores).sum(axis=1, keepdims=True))
            limit = RADIUS - np.sqrt(k) / 2 - 1
            scores = np.rint(scores * (limit / np.maximum(lengths, limit)))
            Y += (block.T @ scores).astype(np.int64)
        energy += int((block * block).sum())
    noise = _noise(product_variance(site.plan), Y.size + 1)
    Y += noise[1:].reshape(Y.shape)
    return {"Y": Y, "energy": np.int64(energy // ENERGY_SHARE + int(noise[0]))}


def _rows_about(site: Site, mean: Array) -> Iterator[Array]:
    """Yield the rows about the mean, shortened to the bound and put on the grid."""
    _refuse_weights(site)
    order = site.recall(CommonOrder).order
    return bounded_blocks(site.rows, mean, Privacy.of(site.plan).row_bound, order)


def _refuse_weights(site: Site) -> None:
    """Refuse rows with weights, since a single row could count as many rows.

    If there are too many rows, only the coordinator refuses, because it sees their number with
    noise. A refusal by a site would reveal something about the exact number. Until the coordinator
    refuses, sums that are too large only wrap around.
    """
    if isinstance(site.rows, WeightedRows):
        raise InputError("rows with weights have no differentially private sums; omit the weights")


def _noise(variance: int, size: int) -> Array:
    """Return random whole numbers with this variance, or zeros if the plan asks for no noise."""
    return discrete_gaussian(variance, size) if variance else np.zeros(size, np.int64)
