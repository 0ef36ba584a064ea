"""The check of pages tells a stale page from one that another machine rounds differently."""

from __future__ import annotations

from types import ModuleType

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot

import pages


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("[0.40 0.26]", "[0.41 0.25]"),
        ("north: 52%", "north:  53%"),
        ("off by 1.5e-05", "off by 1.6e-05"),
        ("first\n...\nlast", "first\nanything\nat all\nlast\n"),
        ("first\n...", "first\n"),
        ("│ a │\n└───┘", "│ a │\n└──────┘"),
        ("\nspaces  ", "spaces"),
        ("-0.", "0."),
    ],
)
def test_what_rounding_and_width_change_is_no_difference(shown, printed):
    assert not pages.differs(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("[0.40 0.26]", "[0.42 0.26]"),
        ("12 rounds", "13 rounds"),
        ("52%", "54%"),
        ("52%", "52"),
        ("off by 1.5e-05", "off by 1.5e-04"),
        ("converged", "exact"),
        ("one line", "one line\nand another"),
        ("first\n...\nlast", "first\nlast but one"),
        ("first\n...\nlast", "first"),
        ("something", ""),
    ],
)
def test_other_words_numbers_and_lines_are_a_difference(shown, printed):
    assert pages.differs(shown, printed)


def test_a_block_of_text_belongs_to_the_code_right_before_it():
    text = "```python\nx\n```\n\n```text\n1\n```\n\nWords.\n\n```text\n2\n```\n\n```sh\ny\n```\n"
    assert pages.blocks(text) == [("python", "x\n", "1\n"), ("sh", "y\n", None)]


def test_a_page_gets_what_its_code_prints_where_it_shows_something_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nprint(6 * 7)\n```\n\n```text\n41\n```\n\n```python\nprint(1)\n```\n"
    )
    module = ModuleType("page")
    outputs = [pages.run_block(block, page, module) for block in pages.blocks(page.read_text())]
    mended = pages.rewritten(page.read_text(), outputs)
    assert mended == page.read_text().replace("41", "42")
    assert pages.rewritten(mended, outputs) == mended


def drawn(path, heights, points=60, **style):
    """A plot with bars, a line, and points."""
    matplotlib.use("Agg")
    rng, x = np.random.default_rng(0), np.arange(len(heights))
    with matplotlib.rc_context(style):
        figure, ax = pyplot.subplots(figsize=(6, 3.8), layout="constrained")
        ax.bar(x, heights, label="share of variance")
        ax.plot(x, np.cumsum(heights), color="C1")
        ax.scatter(*rng.uniform([5, 0], [10, 1], (60, 2))[:points].T, s=10)
        ax.set(xlabel="component", title="bars, a line, and points", xlim=(-1, 10), ylim=(0, 1.1))
        ax.legend()
        figure.savefig(path, dpi=80)
        pyplot.close(figure)
    return path


SHARES = np.array([0.4, 0.25, 0.15, 0.1])


def test_another_plot_is_noticed_and_the_same_one_with_other_letters_is_not(tmp_path):
    shown, saved = drawn(tmp_path / "shown.png", SHARES), tmp_path / "saved.png"
    for style in ({"text.hinting": "none"}, {"font.size": 10.1}, {"font.family": "DejaVu Serif"}):
        assert not pages.picture_differs(shown, drawn(saved, SHARES, **style)), style
    other = [
        (SHARES + np.array([0, 0.025, -0.025, 0]), 60),  # two bars and a point of the line
        (SHARES, 59),  # a single point
        (SHARES[[0, 2, 1, 3]], 60),
    ]
    for heights, points in other:
        assert pages.picture_differs(shown, drawn(saved, heights, points)), (heights, points)
    assert pages.picture_differs(tmp_path / "none.png", saved)
