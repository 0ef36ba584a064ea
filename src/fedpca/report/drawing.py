"""Set up matplotlib: colors that everybody can tell apart, axes, and files."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpca.errors import InputError
from fedpca.storage import atomic

# from Okabe and Ito's palette, which is safe for all kinds of color vision
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
COLORS = (BLUE, ORANGE, GREEN, PINK, "#E69F00", "#56B4E9")
GRAY = "#767676"
MARKERS = "osv^DPX*"  # so that color is never the only difference
HATCHES = ("", "//", "..", "xx", "--", "\\\\")
FORMATS = (".png", ".svg", ".pdf")
# text stays text in SVG files, and equal plots are equal files
_FILE_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "fedpca"}


def pyplot(*, to_file: bool = True) -> Any:
    """Return matplotlib's pyplot, set up to draw to files unless a notebook or window shows plots."""
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "plots require matplotlib; install it with: pip install 'fedpca[plot]'"
        ) from None
    if to_file:
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def new_axes(ax: Any = None, size: tuple[float, float] = (6.0, 3.8)) -> Any:
    """Return the axes to draw on: those given, or those of a new figure."""
    if ax is None:
        _, ax = pyplot(to_file=False).subplots(figsize=size, layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def decades(ax: Any, axis: str, low: float, high: float) -> None:
    """Give the x or y axis a logarithmic scale from low to high, with plain numbers at 1, 2, and 5."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    ax.set(**{f"{axis}scale": "log", f"{axis}lim": (low, high)})
    ticks = getattr(ax, f"{axis}axis")
    ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(StrMethodFormatter("{x:g}"))


def mark_ranks(ax: Any, ranks: Mapping[str, int], consensus: int | None) -> None:
    """Mark above a scree plot how many components each rule finds, and where their median is.

    Each rule has a row of its own, so that no name covers another. The shares below end at 1.
    """
    rows = dict(sorted(ranks.items(), key=lambda item: item[1]))
    right = ax.get_xlim()[1]
    for row, (name, k) in enumerate(rows.items()):
        up = 1.09 + 0.075 * row
        ax.plot([k + 0.5], [up], marker="v", markersize=5, color=GRAY)
        is_left = k > 0.7 * right
        style = {"fontsize": 8, "va": "center", "ha": "right" if is_left else "left"}
        move = (-6 if is_left else 6, 0)
        ax.annotate(f"{name}: {k}", (k + 0.5, up), move, textcoords="offset points", **style)
    if rows:
        ax.set(ylim=(0, 1.09 + 0.075 * len(rows)), yticks=[0, 0.2, 0.4, 0.6, 0.8, 1])
        ax.spines["left"].set_bounds(0, 1)
    if consensus is not None:
        style = {"color": "black", "linestyle": "-."}
        label = f"median of the rules: {consensus}"
        ax.plot([consensus + 0.5] * 2, [0, 1.04], label=label, **style)


def check_plot_file(path: Path) -> None:
    """Refuse a file name that does not say in which format to draw."""
    if path.suffix not in FORMATS:
        raise InputError(f"{path} must end in {', '.join(FORMATS)}, as in {path.stem}.svg")


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file, completely or not at all, in the format of the file's name."""
    target = Path(path)
    check_plot_file(target)
    kind = target.suffix[1:]
    with atomic.writing(target) as temporary:
        _save(figure, temporary, kind)
    pyplot().close(figure)


def as_svg(figure: Any) -> str:
    """Return a figure as an SVG element for a page."""
    written = io.BytesIO()
    _save(figure, written, "svg")
    pyplot().close(figure)
    text = written.getvalue().decode()
    return text[text.index("<svg") :]  # without the XML declaration


def _save(figure: Any, target: Any, kind: str) -> None:
    import matplotlib

    stamp = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with matplotlib.rc_context(_FILE_STYLE):
        figure.savefig(target, dpi=150, format=kind, metadata=stamp)
