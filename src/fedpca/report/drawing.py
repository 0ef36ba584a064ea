"""Set up matplotlib: colors that everybody can tell apart, axes, and files."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, Self

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.protocol.printable import printable
from fedpca.storage import atomic

# from Okabe and Ito's palette, which is safe for all kinds of color vision
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
COLORS = (BLUE, ORANGE, GREEN, PINK, "#E69F00", "#56B4E9")
GRAY = "#767676"
MARKERS = "osv^DPX*"  # so that color is never the only difference
DASHES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "xx", "--", "\\\\")
IMAGE_SUFFIXES = (".png", ".svg", ".pdf")
MAX_LABEL = 32  # most characters of a name that are drawn
AT_RIGHT_EDGE: Any = {  # places words above a line, at the right edge of the axes
    "xycoords": ("axes fraction", "data"),
    "textcoords": "offset points",
    "ha": "right",
    "va": "bottom",
    "fontsize": 8,
    "color": GRAY,
}
# keep text as text in SVG files, and write equal files for equal plots
_FILE_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "fedpca"}


def pyplot(*, to_file: bool = True) -> Any:
    """Return matplotlib's pyplot, which opens no windows if ``to_file`` is true."""
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


class Drawn:
    """What all displays have in common once they are drawn."""

    ax_: Any
    figure_: Any

    def _keep(self, ax: Any) -> Self:
        self.ax_, self.figure_ = ax, ax.figure
        return self


def divided(ax: Any, shares: tuple[int, ...], *, across: bool = False) -> list[Any]:
    """Replace axes with several new axes, below or beside each other, and return the new ones."""
    place = ax.get_subplotspec()
    if place is None:
        raise InputError(
            "this plot divides its axes, so they must be part of a grid; pass axes from pyplot.subplots"
        )
    if across:
        grid = place.subgridspec(1, len(shares), width_ratios=shares)
    else:
        grid = place.subgridspec(len(shares), 1, height_ratios=shares)
    figure = ax.figure
    ax.remove()
    return [new_axes(figure.add_subplot(part)) for part in grid]


def label(name: object) -> str:
    r"""Return a name for a plot: on one line, not too long, and never taken for a formula.

    >>> label("price in $ and cost in $")
    'price in \\$ and cost in \\$'
    """
    shown = printable(name, MAX_LABEL).replace("$", r"\$")  # matplotlib draws \$ as a plain $
    return f" {shown}" if shown.startswith("_") else shown  # legends omit labels that start with _


def in_units(n_bytes: Array) -> tuple[Array, str]:
    """Return numbers of bytes in the unit that suits the largest of them, and the unit's name."""
    largest = n_bytes.max(initial=0)
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if largest >= size:
            return n_bytes / size, unit
    return n_bytes, "bytes"


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

    Each rule has its own row, so that no name covers another. The rows start just above 1, the largest
    share in the plot.
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
    """Refuse a file name that does not end in one of the formats for plots."""
    if path.suffix not in IMAGE_SUFFIXES:
        raise InputError(
            f"{path} must end in one of {', '.join(IMAGE_SUFFIXES)}, as in {path.stem}.svg"
        )


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file, completely or not at all, in the format of the file's name."""
    target = Path(path)
    check_plot_file(target)
    kind = target.suffix[1:]
    with atomic.writing(target) as temporary:
        _save(figure, temporary, kind)
    pyplot().close(figure)


def as_svg(figure: Any, words: str) -> str:
    """Return a figure as an SVG element, with a description for people who cannot see the figure."""
    written = io.BytesIO()
    _save(figure, written, "svg")
    pyplot().close(figure)
    text = written.getvalue().decode()
    text = text[text.index("<svg") :]  # without the XML declaration
    return re.sub(
        "^<svg ", lambda _: f'<svg role="img" aria-label="{escape(printable(words))}" ', text
    )


def _save(figure: Any, target: Any, kind: str) -> None:
    import matplotlib

    none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    stamp = {"png": {"Software": None}, "svg": none, "pdf": {"CreationDate": None}}[kind]
    with matplotlib.rc_context(_FILE_STYLE), warnings.catch_warnings():
        if kind == "svg":  # SVG keeps text as text, and a reader may have other fonts
            warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(target, dpi=150, format=kind, metadata=stamp)
