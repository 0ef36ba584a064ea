"""The check of pages tells a stale page from one that another machine rounds differently."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from matplotlib.image import imsave

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


def test_another_picture_is_noticed_and_a_slightly_different_one_is_not(tmp_path):
    grays = np.linspace(0, 1, 400).reshape(20, 20)
    for name, picture in (("one", grays), ("like", grays * 0.999), ("other", grays.T)):
        imsave(tmp_path / f"{name}.png", picture, cmap="gray", vmin=0, vmax=1)
    one, like, other, none = (tmp_path / f"{n}.png" for n in ("one", "like", "other", "none"))
    assert not pages.picture_differs(one, like)
    assert pages.picture_differs(one, other)
    assert pages.picture_differs(none, one)
