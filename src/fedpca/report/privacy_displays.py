"""Draw what messages reveal, and what privacy costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from fedpca.arrays import Array
from fedpca.audit.exposures import Leakage
from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA, StreamingPCA
from fedpca.privacy.gaussian import Privacy
from fedpca.report.contents import Fitted, described_components, run_of
from fedpca.report.drawing import (
    AT_RIGHT_EDGE,
    BLUE,
    COLORS,
    GRAY,
    MARKERS,
    ORANGE,
    Drawn,
    divided,
    label,
    new_axes,
)
from fedpca.solvers.private.utility import expected_share
from fedpca.summary.summary import Summary

LISTENER_TITLES = {"seen": "listener sees each answer", "summed": "listener sees sums over sites"}
PLOTTED_EPSILONS = tuple(float(epsilon) for epsilon in np.geomspace(0.1, 100, 13))


@dataclass
class LeakDisplay(Drawn):
    """The error of the best attack on the most exposed site after each round, for each solver.

    Parameters
    ----------
    curves : dict of str to dict of str to list of (int, float)
        The rounds and errors of each solver, by listener and then by solver.
    guess : float
        The error of the best guess that uses no messages.

    Attributes
    ----------
    axes_ : list of Axes
        The axes for each listener; ``ax_`` is the first one.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca.audit.leakage import audit
    >>> from fedpca.report import LeakDisplay
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> leakage = audit({"north": rows[:50], "south": rows[50:]}, 2, solvers="covariance", refits=0)
    >>> drawn = LeakDisplay.from_leakage(leakage)
    >>> list(drawn.curves["seen"])
    ['covariance']
    """

    curves: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]
    guess: float
    axes_: list[Any] = field(init=False, default_factory=list)

    @classmethod
    def from_leakage(cls, leakage: Leakage, *, ax: Any = None) -> Self:
        """Draw what `fedpca.audit.leakage.audit` found."""
        curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for listener in LISTENER_TITLES:
            curves[listener] = {}
            for solver in leakage.solvers:
                errors = {s: leakage.best(solver, listener, s).error for s in leakage.sites}
                worst = min(errors, key=lambda site: errors[site])
                curves[listener][solver] = leakage.curve(solver, listener, worst)
        return cls(curves, min(leakage.guesses.values())).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw a curve for each solver; below the dashed line, messages reveal more than a guess."""
        ax = new_axes(ax, (9.0, 3.8))
        self.axes_ = divided(ax, tuple(1 for _ in self.curves), across=True)
        least = min(e for by in self.curves.values() for c in by.values() for _, e in c)
        floor = max(1e-17, min(least, self.guess) / 3)
        for each, (listener, by_solver) in zip(self.axes_, self.curves.items(), strict=True):
            for number, (solver, curve) in enumerate(by_solver.items()):
                rounds, errors = zip(*curve, strict=True)
                look = {"color": COLORS[number % len(COLORS)], "linewidth": 1.2, "markersize": 6}
                mark = {"marker": MARKERS[number % len(MARKERS)], "markerfacecolor": "none"}
                shown = np.maximum(errors, floor)
                each.plot(rounds, shown, label=label(solver), **look, **mark)
            each.axhline(
                self.guess, color=GRAY, linestyle="--", linewidth=1, label="guess without messages"
            )
            each.set(xscale="log", yscale="log", title=LISTENER_TITLES[listener], xlabel="rounds")
            each.set_ylim(floor / 2, 3 * max(1.0, self.guess))
        self.axes_[0].set_ylabel("relative error in a site's covariance")
        for each in self.axes_[1:]:
            each.tick_params(labelleft=False)
        self.axes_[-1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        return self._keep(self.axes_[0])


@dataclass
class UtilityDisplay(Drawn):
    """The share of the exact components' variance that a private fit is expected to keep.

    Parameters
    ----------
    epsilons : ndarray of shape (m,)
        The values of epsilon.
    shares : ndarray of shape (m,)
        The expected share at each value of epsilon.
    epsilon : float, optional
        The epsilon of the run that fitted the model.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.report import UtilityDisplay
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> pca = FederatedPCA(3).fit({"north": rows[:50], "south": rows[50:]})
    >>> drawn = UtilityDisplay.from_estimator(pca, delta=1e-6, row_bound=12, epsilons=[0.1, 10])
    >>> bool(drawn.shares[0] < drawn.shares[1])
    True
    """

    epsilons: Array
    shares: Array
    epsilon: float | None = None

    @classmethod
    def from_estimator(
        cls,
        fitted: Fitted | Summary,
        *,
        delta: float | None = None,
        row_bound: float | None = None,
        epsilons: Sequence[float] = PLOTTED_EPSILONS,
        ax: Any = None,
    ) -> Self:
        """Draw what `expected_share` returns for rows with the variances that the model found.

        ``delta`` and ``row_bound`` are as in `fedpca.Privacy`; by default, they are those of a private
        fit. The curve reveals the variances. To publish the curve, use a model of public rows or a
        model from a private fit.
        """
        spent: Mapping[str, Any] = run_of(fitted).privacy
        delta = spent.get("delta") if delta is None else delta
        row_bound = spent.get("row_bound") if row_bound is None else row_bound
        if delta is None or row_bound is None:
            raise InputError(
                "this model was not fitted privately, so it has no privacy settings; pass delta and "
                "row_bound"
            )
        variances, n = _spectrum(fitted)
        k, sites = len(described_components(fitted.facts())), run_of(fitted).sites
        shares = [
            expected_share(Privacy(epsilon, delta, row_bound), variances, n, k, len(sites) or 1)
            for epsilon in epsilons
        ]
        own = spent.get("promised")
        return cls(np.array(epsilons), np.array(shares), own).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the curve, and a line at the epsilon of the run if the run was private."""
        ax = new_axes(ax)
        ax.plot(self.epsilons, self.shares, color=BLUE, marker="o", markersize=4)
        ax.set(
            xscale="log",
            ylim=(0, 1.05),
            xlabel="epsilon (smaller is more private)",
            ylabel="expected share of the variance kept",
        )
        ax.axhline(1, color=GRAY, linestyle="--", linewidth=1)
        ax.annotate("without noise", (1, 1), (0, -11), **AT_RIGHT_EDGE)
        if self.epsilon is not None and self.epsilons[0] <= self.epsilon <= self.epsilons[-1]:
            ax.axvline(self.epsilon, color=ORANGE, linestyle=":")
            ax.annotate(
                f" this run: {self.epsilon:g}", (self.epsilon, 0.03), color=ORANGE, fontsize=8
            )
        return self._keep(ax)


def _spectrum(fitted: Fitted | Summary) -> tuple[Array, float]:
    """Return the variances along all directions, and the number of rows."""
    n: float
    if isinstance(fitted, Summary):
        model = StreamingPCA.from_summary(fitted)
        kept, noise, d = model.explained_variance_, model.noise_variance_, fitted.n_features
        n = fitted.n
    elif isinstance(fitted, StreamingPCA | FederatedPCA):
        kept, noise, d = fitted.explained_variance_, fitted.noise_variance_, fitted.n_features_in_
        n = fitted.n_samples_seen_ if isinstance(fitted, StreamingPCA) else fitted.n_samples_
    else:
        raise InputError(
            f"{type(fitted).__name__} has no private fit; use a FederatedPCA to draw what privacy costs"
        )
    return np.concatenate([kept, np.full(d - len(kept), noise)]), float(n)
