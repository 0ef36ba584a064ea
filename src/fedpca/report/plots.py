"""Pictures, by matplotlib where it is installed."""

from __future__ import annotations

import os
from typing import Any

from fedpca import atomic
from fedpca.errors import InputError
from fedpca.privacy.exposures import Leakage

MARKERS = "osv^DPX*"  # so that curves on top of each other can be told apart
LINE = {"markersize": 6, "markerfacecolor": "none", "linewidth": 1.2}
TITLES = {"seen": "each site's answers seen", "summed": "sums over sites seen"}


def draw_leakage(found: Leakage, path: str | os.PathLike[str]) -> None:
    """The error of the best attack after each round, of the site that is most exposed.

    The dashed line is the best guess without any message of a solver.
    """
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    for axis, (listener, title) in zip(axes, TITLES.items(), strict=True):
        for number, solver in enumerate(found.solvers):
            site = min(found.sites, key=lambda s: found.best(solver, listener, s).error)
            rounds, errors = zip(*found.curve(solver, listener, site), strict=True)
            axis.plot(rounds, errors, marker=MARKERS[number % len(MARKERS)], label=solver, **LINE)
        guess = min(found.guesses.values())
        axis.axhline(
            guess, color="grey", linestyle="--", linewidth=1, label="guess without messages"
        )
        axis.set(xscale="log", yscale="log", title=title, xlabel="rounds")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("relative error of a site's covariance")
    axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    with atomic.writing(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
    plt.close(figure)


def pyplot() -> Any:
    """Matplotlib's pyplot for files, or an error that names what to install."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("pictures need matplotlib: pip install 'fedpca[plot]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
