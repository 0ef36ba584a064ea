"""Draw what the leak lab found."""

from __future__ import annotations

import os

from fedpca.audit.exposures import Leakage
from fedpca.report.drawing import MARKERS, pyplot
from fedpca.storage import atomic

LINE_STYLE = {"markersize": 6, "markerfacecolor": "none", "linewidth": 1.2}
TITLES = {"seen": "listener sees each answer", "summed": "listener sees sums over sites"}


def draw_leakage(leakage: Leakage, path: str | os.PathLike[str]) -> None:
    """Plot the best attack's error after each round, for each solver's most exposed site.

    The dashed line shows the error of the best guess that uses no messages from a solver.
    """
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    for axis, (listener, title) in zip(axes, TITLES.items(), strict=True):
        for number, solver in enumerate(leakage.solvers):
            site = min(leakage.sites, key=lambda s: leakage.best(solver, listener, s).error)
            rounds, errors = zip(*leakage.curve(solver, listener, site), strict=True)
            axis.plot(
                rounds, errors, marker=MARKERS[number % len(MARKERS)], label=solver, **LINE_STYLE
            )
        guess = min(leakage.guesses.values())
        axis.axhline(
            guess, color="gray", linestyle="--", linewidth=1, label="guess without messages"
        )
        axis.set(xscale="log", yscale="log", title=title, xlabel="rounds")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("relative error in a site's covariance")
    axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    with atomic.writing(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
    plt.close(figure)
