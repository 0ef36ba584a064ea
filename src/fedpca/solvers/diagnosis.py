"""Ask the sites for sums that show what a fit leaves unknown: the rest of the spectrum.

The program uses a fitted model's mean and scale. It asks what a fit with the rule "auto" asks, with the
solver "covariance" or "lanczos", whichever moves fewer bytes. So the coordinator sees what a second fit
would show it, and sites admit the program if they would admit a fit.

If the covariance is summed, all eigenvalues are known. If the covariance is too large to be summed,
only the leading eigenvalues are known. The traces of powers of the rest, R, are then estimated from
products with b random directions Z outside the components, which takes two rounds:

    tr R^2 ~ (d - k) / b |R Z|^2,   tr R^3 ~ (d - k) / b tr (R Z)' R (R Z)

Source: Hutchinson, "A stochastic estimator of the trace of the influence matrix for Laplacian smoothing
splines" (1990).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.record import Outcome
from fedpca.coordinator.warm_start import WarmStart
from fedpca.errors import InputError, PolicyRefused
from fedpca.linalg.dense import orth, outside, residual_traces, top_eigen, unpack_triangle
from fedpca.linalg.rank_rules import Spectrum
from fedpca.models.linear import Model
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Script, script
from fedpca.rows.columns import column_order
from fedpca.rows.gaps import MISSING
from fedpca.solvers.catalogue import cheapest_exact
from fedpca.solvers.common_features import CommonFeatures, common_features
from fedpca.solvers.contract import Problem, Solution, covariance_product
from fedpca.solvers.exact.covariance import Covariance, covariance_triangle
from fedpca.solvers.exact.lanczos import Lanczos
from fedpca.solvers.pca import pca_script
from fedpca.solvers.sign_flips import SignFlips, column_squares
from fedpca.solvers.standardize import Moments, ask_sums, squares

N_MORE_PRODUCTS = 2  # products with rows after the eigenvalues are found
LOOK = 20  # leading eigenvalues to find if not all can be found
LOOKS = 3  # most looks for the rule; each finds twice as many eigenvalues as the last one
N_PROBES = 16  # random directions from which the traces are estimated
MAX_FEATURES = 4096  # with more features, only leading eigenvalues are computed


@dataclass(frozen=True)
class Facts:
    """What sums over sites show about the rows that a model describes.

    Parameters
    ----------
    n_rows, weight : int and float
        The number of rows that the sites have now, and their total weight.
    spectrum : Spectrum
        The eigenvalues of the scatter about the model's mean and in its scale: all of them, or only
        the leading ones.
    squares : ndarray of shape (d,)
        The sum of squares of each feature about the model's mean, in the model's scale.
    traces : ndarray of shape (3,)
        The traces outside the model's components, as in `fedpca.linalg.residual`.
    along : ndarray of shape (k,)
        The sum of squares along each of the model's components.
    sign_flips : int or str
        The number of components according to the rule "auto", or a site's reason for refusing.
    outcome : Outcome
        How the run ended.
    """

    n_rows: int
    weight: float
    spectrum: Spectrum
    squares: Array
    traces: Array
    along: Array
    sign_flips: int | str | None
    outcome: Outcome


def diagnose_sums(
    fed: Federation,
    start: WarmStart | None,
    *,
    model: Model,
    features: tuple[str, ...] | None,
    n_components: str,
    center: bool,
    scale: bool | str,
    missing: str,
    tol: float,
    max_rounds: int,
) -> Facts:
    """Ask for the spectrum, the variance of each feature, and what the rule "auto" needs."""
    common, moments = moments_about(fed, model, features, scale=scale, missing=missing)
    watch = Watch(SignFlips(fed), max(LOOK, 2 * len(model.components)))
    problem = Problem(
        common,
        n_components,
        center,
        scale,
        tol,
        max_rounds - N_MORE_PRODUCTS,
        common.matched(start),
        moments=moments,
        flips=watch,
        missing=missing,
    )
    solver = cheapest_exact(moments.n, moments.d, min(watch.least, moments.n, moments.d))
    if isinstance(solver, Covariance) and moments.d <= MAX_FEATURES:
        return _from_covariance(fed, model, moments, watch)
    solution = Lanczos(stop="noise").solve(fed, problem)
    return _from_products(fed, model, solution, watch)


@dataclass
class Watch:
    """The rule "auto", made to keep all eigenvalues and to record the spectrum and its result."""

    rule: SignFlips
    least: int  # smallest number of eigenvalues to look at
    looks: int = 0
    spectrum: Spectrum | None = None
    rank: int | None = None
    reason: str = ""

    def __call__(self, spectrum: Spectrum) -> int | None:
        """Return the number of eigenvalues found so far, or None if more of them are needed."""
        if len(spectrum.values) < self.least and not spectrum.is_whole:
            return None
        self.spectrum, self.looks = spectrum, self.looks + 1
        try:
            with self.rule.fed.optional():
                self.rank = self.rule(spectrum)
        except PolicyRefused as refused:
            self.reason = str(refused)
        is_done = self.rank is not None or self.reason or self.looks >= LOOKS
        return len(spectrum.values) if is_done or spectrum.is_whole else None

    @property
    def found(self) -> int | str | None:
        """Return the number of components, or why it is not known."""
        return self.reason or self.rank


@script("Diagnosis")
def diagnosis_script(plan: RunPlan) -> Script:
    """Return what `diagnose_sums` may ask: the same as a fit with the rule "auto"."""
    if plan.is_private:
        raise PolicyRefused("a diagnosis has no differentially private form")
    if plan.parameters.get("n_components") != "auto" or plan.solver != "auto":
        raise PolicyRefused("a diagnosis must have n_components='auto' and solver='auto'")
    return pca_script(plan)


def moments_about(
    fed: Federation,
    model: Model,
    features: tuple[str, ...] | None,
    *,
    scale: bool | str,
    missing: str,
) -> tuple[CommonFeatures, Moments]:
    """Ask for the number of rows, and return the moments that put rows in the model's frame."""
    common = common_features(fed, takes_weights=True, of_model=features)
    d = model.components.shape[1]
    if common.n_features != d:
        raise InputError(
            f"the sites have {common.n_features} columns, but the model has {d} features; use the "
            "columns that the model was fitted to"
        )
    if features is not None and common.names is not None:
        in_order = common.in_order and column_order(features, common.names, "the sites") is None
        common = replace(common, names=features, in_order=in_order)
    sums = ask_sums(fed, common, MISSING.index(missing))
    if int(sums["n"]) < 2:
        raise InputError(f"all sites together must have at least 2 rows, got {int(sums['n'])}")
    if scale is True:  # a fit asks this too; the model has the scale already
        fed.sum(squares, mean=model.mean)
    moments = Moments(int(sums["n"]), model.mean, model.scale, common.names, float(sums["weight"]))
    return common, moments


def _from_covariance(fed: Federation, model: Model, moments: Moments, watch: Watch) -> Facts:
    """Return what follows from the sum of the sites' covariances, which shows all eigenvalues."""
    asked = fed.sum(covariance_triangle, mean=moments.mean, scale=moments.scale)
    C, V = unpack_triangle(asked["triangle"]), model.components.T
    values, vectors = top_eigen(C, moments.d)
    n_possible = min(moments.n, moments.d)
    values = np.maximum(values[:n_possible], 0.0)
    vectors = vectors[:, :n_possible]
    watch(Spectrum(values, float(np.trace(C)), moments.n, moments.d, True, vectors=vectors))
    return Facts(
        moments.n_rows,
        moments.weight,
        _spectrum_of(watch),
        C.diagonal().copy(),
        residual_traces(C, V),
        np.einsum("dk,dk->k", V, C @ V),
        watch.found,
        Outcome(Covariance.name, "exact"),
    )


def _from_products(fed: Federation, model: Model, solution: Solution, watch: Watch) -> Facts:
    """Return what follows from products: the leading eigenvalues, and estimates of the traces."""
    V, energy = model.components.T, solution.energy
    d, k = V.shape
    squares = watch.rule.squares
    if squares is None:  # no row varies, or a site's policy refused the rule's question
        squares = fed.sum(column_squares)["squares"]
    b = min(N_PROBES, d - k)
    probes = orth(outside(V, outside(V, fed.rng().standard_normal((d, b)))))
    Y = fed.sum(covariance_product, Z=np.hstack([V, probes]))["Y"]
    along = np.einsum("dk,dk->k", V, Y[:, :k])
    traces = np.zeros(3)
    if b and energy > 0:
        beyond = outside(V, Y[:, k:]) / energy
        Q, R = np.linalg.qr(beyond)
        again = fed.sum(covariance_product, Z=Q)["Y"] @ R / energy
        traces = np.array(
            [
                max(0.0, 1 - float(along.sum()) / energy),
                (d - k) / b * np.vdot(beyond, beyond),
                (d - k) / b * max(0.0, np.vdot(beyond, again)),
            ]
        )
    return Facts(
        solution.moments.n_rows,
        solution.moments.weight,
        _spectrum_of(watch),
        squares,
        traces,
        along,
        watch.found,
        solution.outcome(Lanczos.name),
    )


def _spectrum_of(watch: Watch) -> Spectrum:
    """Return the spectrum that was looked at, without its vectors."""
    assert watch.spectrum is not None
    return replace(watch.spectrum, vectors=None)
