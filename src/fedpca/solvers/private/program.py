"""Find components with differential privacy, from sums that have noise in them.

    S = sum q q' + E,   C = (r / R)^2 S,   C V = V diag(theta)

The sites add noise to the count and the mean, and then to the scatter about that mean
(`fedpca.solvers.private.at_site`). Everything else follows from these numbers, so it costs no more
privacy: the eigenvectors, how far the noise may have turned them, the variances, and the number of
components.

If there are too many features for the scatter, each of a few rounds multiplies it by a block
instead, ``Y = S Z + E``, and continues from the directions of Y. The noise of each product is
larger, since the rounds share the budget. The noise turns Z away by an angle with cosine c, so that
a singular value of ``S Z`` is ``c l``. It also adds ``s^2 d`` to the square of this value. The two
effects cancel once the directions have settled, so the singular values of Y are the eigenvalues.

The noise E of a scatter is a random symmetric matrix. Its norm is near ``edge = s sqrt(2 d)``, where s
is the standard deviation of its diagonal. It raises a large eigenvalue l of the scatter to ``l + edge^2
/ (4 l)``, which is corrected here, and hides eigenvalues below ``edge / 2``. It is also known how
far the norm can exceed the edge. A component stands out only if its eigenvalue exceeds that norm.

The mean has noise in it. About a point that is off by f, the scatter has one more term ``n f f'``. This
term does not stand out as long as its size ``n |f|^2`` is below ``edge / 2``.

Sources: Dwork, Talwar, Thakurta, and Zhang, "Analyze Gauss" (2014); Hardt and Price, "The noisy power
method" (2014); Benaych-Georges and Nadakuditi, "The eigenvalues and eigenvectors of finite, low rank
perturbations of large random matrices" (2011); Johnstone, "On the distribution of the largest
eigenvalue in principal components analysis" (2001).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from scipy.special import gammaincinv

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.warm_start import WarmStart
from fedpca.errors import InputError
from fedpca.linalg.dense import angle_bounds, orth, top_eigen, unpack_triangle
from fedpca.linalg.parallel_analysis import count_above, noise_floor
from fedpca.linalg.rank_rules import RankRule, Spectrum, rank_rule, settled
from fedpca.privacy.gaussian import Privacy, around_point
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Order, Script, either, then
from fedpca.rows.bounded import MAX_ROWS, RADIUS
from fedpca.solvers.common_features import AGREEING, common_features
from fedpca.solvers.contract import PcaResult, Solution, Solver, check_choice
from fedpca.solvers.private.at_site import (
    AROUND_TIMES,
    COUNT_UNIT,
    ENERGY_SHARE,
    noisy_count_and_sum,
    noisy_product,
    noisy_scatter,
    product_variance,
    scatter_variance,
    sum_variance,
)
from fedpca.solvers.standardize import Moments

MAX_SCATTER_FEATURES = 4096  # with more features, products are summed instead of the scatter
SPARE_COLUMNS = 5  # columns of a block, in addition to one for each component
MAX_LOOK = 50  # components that a rule can find in products
SOLVERS = ("auto", "covariance", "subspace-iteration")  # the solvers that can add noise
# the 97.5 % quantile for real matrices; 5 % of norms exceed it, at one end or the other
TRACY_WIDOM = 1.454


def private_components(
    fed: Federation,
    start: WarmStart | None,
    *,
    privacy: Privacy,
    solver: Solver | None,
    n_components: Any,
    center: bool,
    scale: bool,
    tol: float,
    max_rounds: int,
    missing: str = "error",
) -> PcaResult:
    """Find the components of all sites' rows, with the promise that ``privacy`` makes."""
    check_private(None if solver is None else solver.name, scale, missing)
    common = common_features(fed)
    d = common.n_features
    around = around_point(privacy, d)
    rank_rule(n_components, d, d)  # refuse more components than features before anything is sent
    sums = fed.sum(noisy_count_and_sum, features=common.to_ask)
    # with much noise, there may seem to be hardly any rows
    n = max(
        float(sums["n"]) / COUNT_UNIT, 2.0, float(n_components) if is_count(n_components) else 0
    )
    if n > MAX_ROWS:
        raise InputError(
            f"a private run must have at most {MAX_ROWS:,} rows at all sites, got about {n:,.0f}; "
            "leave out some rows"
        )
    mean, off = np.zeros(d), 0.0
    if center:
        move = sums["total"] * (AROUND_TIMES * privacy.row_bound / RADIUS / n)
        mean, off = around + move, _energy_of_offset(fed.plan, privacy, n, move)
    moments = Moments(round(n), mean, np.ones(d), common.names, n)
    rank = rank_rule(n_components, moments.n, d)
    name = solver.name if solver else private_solver(d)
    find = _from_scatter if name == "covariance" else _from_products
    noisy = find(fed, privacy, moments, rank.first_look if is_count(n_components) else d, off)
    result = _result(noisy, name, moments, rank, n_components)
    return replace(result, left_out=common.left_out)


def _energy_of_offset(plan: RunPlan, privacy: Privacy, n: float, move: Array) -> float:
    """Return a bound on the scatter that a noisy mean adds, which holds except in 5 % of runs.

    The mean is ``move`` away from the guessed center. An error in n shifts the mean by a share of
    this move.
    """
    deviation = np.sqrt(float(len(plan.sites) * sum_variance(plan)))
    more_rows = 2 * deviation / COUNT_UNIT
    step = AROUND_TIMES * privacy.row_bound / RADIUS
    # the quantile is that of the squared length of a vector of normal numbers
    quantile = 2 * gammaincinv(len(move) / 2, 0.975)
    squared = quantile * (deviation * step / n) ** 2
    squared += (move @ move) * (more_rows / n) ** 2
    return float((n + more_rows) * min(squared, privacy.row_bound**2))


@dataclass(frozen=True)
class NoisyEigen:
    """Leading eigenvalues and eigenvectors of the scatter, with noise in them."""

    values: Array  # (p,)
    actual: Array  # (p,), the values without what the noise adds to them
    vectors: Array  # (d, p)
    angle_bounds: Array  # (p,), on the sine of the angle from the first j vectors to the exact ones
    energy: float
    norm: float  # bound on the norm of the noise; eigenvalues up to this may be only noise
    squares: Array | None = None  # (d,), the sum of squares of each column


def _from_scatter(
    fed: Federation, privacy: Privacy, moments: Moments, look: int, off: float
) -> NoisyEigen:
    """Return the leading eigenvectors of the noisy scatter, and the eigenvalue after the last."""
    d, unit, plan = moments.d, (privacy.row_bound / RADIUS) ** 2, fed.plan
    triangle = fed.sum(noisy_scatter, mean=moments.mean)["triangle"]
    C = unpack_triangle(triangle.astype(np.float64) * unit)
    edge = unit * np.sqrt(len(plan.sites) * scatter_variance(plan) * 2.0 * d)
    values, V = top_eigen(C, min(look + 1, d))
    norm = edge * (1 + TRACY_WIDOM / 2 * d ** (-2 / 3))
    if off > edge / 2:
        norm = max(norm, off + edge**2 / (4 * off))
    actual = without_noise(values, edge)
    bounds = angle_bounds(actual, np.full(len(values), norm), len(values))
    return NoisyEigen(values, actual, V, bounds, float(np.trace(C)), norm, C.diagonal())


def _from_products(
    fed: Federation, privacy: Privacy, moments: Moments, look: int, off: float
) -> NoisyEigen:
    """Return the leading directions after a fixed number of noisy products."""
    d, unit, plan = moments.d, (privacy.row_bound / RADIUS) ** 2, fed.plan
    width = min(d, min(look, MAX_LOOK) + SPARE_COLUMNS)
    Z = orth(fed.rng().standard_normal((d, width)))
    energies = []
    for _ in range(privacy.n_products):
        answer = fed.sum(noisy_product, mean=moments.mean, Z=Z)
        before, Y = Z, answer["Y"] * unit
        Z, values, _ = np.linalg.svd(Y, full_matrices=False)
        energies.append(float(answer["energy"]) * ENERGY_SHARE * unit)
    deviation = unit * np.sqrt(float(len(plan.sites) * product_variance(plan)))
    more = TRACY_WIDOM / 2 * (1 / np.sqrt(d) + 1 / np.sqrt(width)) ** (1 / 3)
    norm = deviation * (np.sqrt(d) + np.sqrt(width) + more) + off
    actual = np.where(values > norm, values, values / 2)
    bounds = _bounds_after(before, Y, Z, off)
    return NoisyEigen(values, actual, Z, bounds, float(np.mean(energies)), norm)


def _bounds_after(before: Array, Y: Array, after: Array, off: float) -> Array:
    """Bound the sine of the angle between the first j directions after a product and the exact ones.

    The residuals show how far the directions before the product are from eigenvectors: with noise, they
    are larger than without it. The angle from there to the directions after the product is known.
    """
    H = before.T @ Y
    theta, W = top_eigen((H + H.T) / 2, len(H))
    residuals = np.linalg.norm(Y @ W - (before @ W) * theta, axis=0) + off
    bounds = angle_bounds(theta, residuals, len(theta))
    overlap = (before @ W).T @ after
    for j in range(1, len(theta) + 1):
        least = min(np.linalg.svd(overlap[:j, :j], compute_uv=False)[-1], 1.0)
        angle = np.arcsin(bounds[j - 1]) + np.arccos(least)
        bounds[j - 1] = np.sin(min(angle, np.pi / 2))
    return bounds


def _result(
    noisy: NoisyEigen, solver: str, moments: Moments, rank: RankRule, n_components: Any
) -> PcaResult:
    """Return the components, their variances without the noise, and how certain they are."""
    values, actual, norm = noisy.values, noisy.actual, noisy.norm
    energy = max(noisy.energy, float(actual.max(initial=0.0)))
    n_most = min(moments.n, moments.d, len(values))
    spectrum = Spectrum(actual[:n_most], energy, moments.n, moments.d, is_all=True)
    if n_components == "auto":
        k = _above_noise(replace(spectrum, values=values[:n_most], squares=noisy.squares), norm)
    else:
        k = rank.settle(spectrum)
    n_certain = int(np.argmin(np.append(values[:k] > norm, False)))
    solution = Solution(
        moments,
        noisy.vectors[:, :k],
        actual[:k],
        max(energy, float(actual[:k].sum())),
        "private",
        angle_bound=float(noisy.angle_bounds[k - 1]),
        n_certain=n_certain,
    )
    return PcaResult(solution, {}, solution.outcome(solver), is_above_noise=bool(n_certain))


def without_noise(values: Array, edge: float) -> Array:
    """Return eigenvalues of a scatter without what the noise adds to them, but at least zero.

    An eigenvalue l appears as ``l + edge^2 / (4 l)`` if it exceeds half the edge. A value below the
    edge may be nothing but noise. It is halved, which continues the other values without a jump.
    """
    root = np.sqrt(np.maximum(values**2 - edge**2, 0.0)) if edge else values
    return np.asarray(np.maximum((values + root) / 2, 0.0))


def _above_noise(spectrum: Spectrum, norm: float) -> int:
    """Return how many values exceed those of rows without structure plus the noise."""
    squares = spectrum.squares
    if squares is None:
        squares = np.full(spectrum.d, spectrum.total / spectrum.d)
    floor = noise_floor(spectrum.n, np.maximum(squares, 0.0), len(spectrum.values)) + norm
    return settled(count_above(spectrum.values, floor), replace(spectrum, is_all=True)) or 1


def is_count(n_components: Any) -> bool:
    """Return whether ``n_components`` is a number of components, not a rule or a share."""
    return isinstance(n_components, Integral)


def private_script(plan: RunPlan) -> Script:
    """Return what `private_components` asks."""
    privacy = Privacy.of(plan)
    given = plan.parameters
    check_private(plan.solver, given.get("scale", False), given.get("missing", "error"))
    products = then(*[noisy_product] * privacy.n_products)
    ways: dict[str, Order] = {
        "auto": either(noisy_scatter, products),
        "covariance": then(noisy_scatter),
        "subspace-iteration": products,
    }
    return Script(then(AGREEING, noisy_count_and_sum, ways[plan.solver]))


def private_solver(d: int) -> str:
    """Return the mechanism that a private fit uses by default."""
    return "covariance" if d <= MAX_SCATTER_FEATURES else "subspace-iteration"


def check_private(solver: str | None, scale: bool, missing: str) -> None:
    """Refuse options that have no differentially private mechanism."""
    check_choice("solver", solver or "auto", SOLVERS)
    if scale:
        raise InputError(
            "scale=True has no differentially private mechanism; divide the columns by ranges that are "
            "known without looking at the rows, and choose row_bound for the result"
        )
    if missing != "error":
        raise InputError(
            f"missing={missing!r} has no differentially private mechanism; drop rows with missing "
            "values before the fit, or fill in values that do not depend on other rows"
        )
