"""Print tables and draw panels of curves, in one style for all papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

OURS = "#1f6fb4"
OTHERS = ("#b0b0b0", "#d8a25e", "#7fa87f", "#a884b0", "#c47a7a", "#8c8c8c", "#6fb0b0", "#d0c070")

Curve = tuple[Sequence[float], Sequence[float]]


def show(title: str, head: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    """Print an aligned table, with four digits of every float."""
    cells = [list(head)]
    cells += [[f"{c:.4g}" if isinstance(c, float) else str(c) for c in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for first, *others in cells:
        numbers = (cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))
        print("  " + "  ".join([first.ljust(widths[0]), *numbers]).rstrip())


def spread(rounds: Sequence[float], most: int) -> str:
    """Write the median, smallest and largest number of rounds; infinite ones are more than ``most``."""

    def text(value: float) -> str:
        return f"{value:.0f}" if np.isfinite(value) else f">{most}"

    middle = float(np.sort(rounds)[len(rounds) // 2])  # np.median may average with infinity
    return f"{text(middle)} ({text(min(rounds))}-{text(max(rounds))})"


def draw_panels(
    path: Path,
    panels: Mapping[str, Mapping[str, Curve]],
    *,
    xlabel: str,
    ylabel: str,
    ours: Sequence[str] = (),
    behind: Sequence[str] = (),
    log: str = "",
    columns: int = 3,
) -> None:
    """Draw one panel for each title, with its curves by name.

    Parameters
    ----------
    path : Path
        The file to write; its folder is made.
    panels : dict of dict of (x, y)
        Curves by the panel's title and the curve's name.
    xlabel, ylabel : str
        The names of the axes.
    ours : sequence of str
        Curves drawn in blue and on top.
    behind : sequence of str
        Curves drawn broad and gray, below the others.
    log : str
        Logarithmic axes: "", "x", "y" or "xy".
    columns : int
        Panels in a row.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogFormatter

    columns = min(columns, len(panels))
    n_rows = -(-len(panels) // columns)
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    rivals = [name for name in names if name not in (*ours, *behind)]
    below = 0.2 + 0.2 * -(-len(names) // (2 * columns))  # inches for the legend
    height = 2.8 * n_rows + below
    figure, axes = plt.subplots(n_rows, columns, figsize=(4.0 * columns, height), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (title, curves) in zip(axes.flat, panels.items(), strict=False):
        for name, (x, y) in curves.items():
            if name in ours:
                dash = ("-", "--", ":", "-.")[ours.index(name) % 4]
                style = {"color": OURS, "linestyle": dash, "linewidth": 2, "zorder": 3}
            elif name in behind:
                style = {"color": OTHERS[0], "linewidth": 5, "zorder": 1}
            else:
                style = {"color": OTHERS[rivals.index(name) % len(OTHERS)], "linewidth": 1.4}
            axis.plot(x, y, label=name, **style)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        if "x" in log:
            axis.set_xscale("log")
        if "y" in log:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(LogFormatter())
            axis.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
    for axis in axes[:, 0]:
        axis.set_ylabel(ylabel)
    for axis in axes[-1]:
        axis.set_xlabel(xlabel)
    handles = {
        label: handle
        for axis in axes.flat[: len(panels)]
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        frameon=False,
        fontsize=8,
        ncols=2 * columns,
        loc="lower center",
    )
    figure.tight_layout(rect=(0, below / height, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
