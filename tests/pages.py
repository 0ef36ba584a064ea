"""Run the code of a page, and compare what it prints and draws with what the page shows.

    PYTHONPATH=tests python tests/pages.py docs/tutorials/streams.md            # say where they differ
    PYTHONPATH=tests python tests/pages.py docs/tutorials/streams.md --write    # and mend the page

A ``text`` block right behind a ``python`` or ``sh`` block shows what that block prints. A line with
nothing but ``...`` in it stands for any lines. Numbers may differ by one in their last digit, because
another machine may round them the other way. A picture that a page shows is one that its code saves
under the same name, unless no block saves it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

import forked

BLOCK = re.compile(
    r"^```(?P<kind>python|sh)\n(?P<code>.*?)^```$(?:\n+^```text\n(?P<shown>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+\.png)\)")
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?%?")
RULE = re.compile(r"[─━═-]{3,}")  # lines of tables are as long as their columns
MOVED = 2  # pixels by which other fonts may move what is drawn
MOST_APART = 0.1  # difference of shades, which are from 0 to 1
SPOT = 3  # side of the smallest square of wrong pixels that is a difference
AROUND, MOST_WRONG = 15, 0.15  # side of a larger square, and share of its pixels, for thin lines


class Block(NamedTuple):
    """A block of code, and what the page says that it prints, if it says so."""

    kind: str
    code: str
    shown: str | None


def blocks(text):
    """The blocks of code of a page, in their order."""
    return [Block(*found.group("kind", "code", "shown")) for found in BLOCK.finditer(text)]


def as_typed(line):
    """The words of a line of a page, with the programs of this environment."""
    program, *words = shlex.split(line)
    programs = {"fedpca": [sys.executable, "-m", "fedpca"], "python": [sys.executable]}
    return [*programs.get(program, [program]), *words]


def run_block(block, page, module):
    """Run a block in the current folder and return what it prints."""
    if block.kind == "python":
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block.code, str(page), "exec"), module.__dict__)
        return printed.getvalue()
    printed = []
    for line in block.code.splitlines():
        env = {**os.environ, "COLUMNS": "100"}
        done = forked.run(as_typed(line), capture_output=True, text=True, env=env)
        assert done.returncode == 0, (line, done.stderr)
        printed.append(done.stdout)
    return "".join(printed)


def differs(shown, printed):
    """Whether a block prints something else than its page shows."""
    wanted, found = (tidy(text).splitlines() for text in (shown, printed))
    if "..." in wanted:
        start = wanted.index("...")
        end = len(wanted) - 1 - wanted[::-1].index("...")
        if start != end:
            raise ValueError("a block of text may have one line with ... in it")
        after = wanted[start + 1 :]
        if len(found) < len(wanted) - 1:
            return True
        wanted, found = wanted[:start] + after, found[:start] + found[len(found) - len(after) :]
    return len(wanted) != len(found) or any(map(line_differs, wanted, found))


def tidy(text):
    """The text without empty lines around it, or spaces behind its lines."""
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def line_differs(wanted, found):
    """Whether two lines have other words, or numbers further apart than rounding puts them."""
    if words_of(wanted) != words_of(found):
        return True
    numbers = zip(NUMBER.findall(wanted), NUMBER.findall(found), strict=True)
    return any(number_differs(*pair) for pair in numbers)


def words_of(line):
    """The words of a line, with all numbers alike and all rules of tables of one length."""
    without = NUMBER.sub(lambda number: "0%" if number[0].endswith("%") else "0", line)
    return RULE.sub("---", without).split()


def number_differs(wanted, found):
    """Whether two numbers are further apart than one in the last digit; whole ones must be equal."""
    mantissa, _, exponent = wanted.rstrip("%").partition("e")
    decimals = len(mantissa.partition(".")[2])
    is_whole = not decimals and not exponent and not wanted.endswith("%")
    unit = 0 if is_whole else 10.0 ** (int(exponent or 0) - decimals)
    return abs(float(wanted.rstrip("%")) - float(found.rstrip("%"))) > 1.01 * unit


def drawn(page, folder):
    """The pictures of a page that its code saved: the page's own file, and the saved one."""
    pictures = [page.parent / target for target in PICTURE.findall(page.read_text())]
    return [(path, folder / path.name) for path in pictures if (folder / path.name).exists()]


def picture_differs(shown, saved):
    """Whether two pictures differ by more than fonts and rounding explain.

    A pixel is wrong if the other picture has no such shade within a few pixels. Letters of another font
    leave single wrong pixels. A mark, a bar, or a line in another place leaves a spot or a streak.
    """
    from matplotlib.image import imread

    if not shown.exists():
        return True
    one, other = (np.atleast_3d(imread(path)) for path in (shown, saved))
    if one.shape != other.shape:
        return True
    return any(_is_elsewhere(*pair) for pair in ((one, other), (other, one)))


def _is_elsewhere(one, other):
    """Whether something in a picture is not near the same place in the other."""
    from scipy import ndimage

    near = (2 * MOVED + 1, 2 * MOVED + 1, 1)
    too_dark = one < ndimage.minimum_filter(other, near) - MOST_APART
    too_light = one > ndimage.maximum_filter(other, near) + MOST_APART
    wrong = (too_dark | too_light).any(axis=2)
    has_spot = ndimage.binary_erosion(wrong, np.ones((SPOT, SPOT))).any()
    return has_spot or ndimage.uniform_filter(wrong.astype(float), AROUND).max() > MOST_WRONG


def rewritten(text, outputs):
    """The page's text with what its blocks have printed in place of what they should."""
    printed = iter(outputs)

    def put(found):
        output = tidy(next(printed))
        shown = found["shown"]
        if shown is None or not differs(shown, output):
            return found[0]
        return found[0].replace(f"```text\n{shown}```", f"```text\n{output}\n```")

    return BLOCK.sub(put, text)


def main():
    """Run a page in a temporary folder."""
    parser = argparse.ArgumentParser(description="Run a page, and compare it with what it prints.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="mend the page and its pictures")
    options = parser.parse_args()
    os.environ.setdefault("MPLBACKEND", "Agg")
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)
    is_stale = False
    for page in (path.resolve() for path in options.pages):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            module = sys.modules["page"] = ModuleType("page")
            text, outputs = page.read_text(), []
            for block in blocks(text):
                outputs.append(run_block(block, page, module))
                if block.shown is not None and differs(block.shown, outputs[-1]):
                    is_stale = True
                    print(f"{page.name} shows\n{block.shown}\nbut its code prints\n{outputs[-1]}")
            if options.write:
                page.write_text(rewritten(text, outputs))
            for shown, saved in drawn(page, Path(folder)):
                if picture_differs(shown, saved):
                    is_stale = True
                    print(f"{page.name} shows {shown.name}, but its code draws another one")
                    if options.write:
                        shutil.copy(saved, shown)
    return int(is_stale and not options.write)


if __name__ == "__main__":
    sys.exit(main())
