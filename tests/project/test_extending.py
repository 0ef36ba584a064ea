"""What can be added is added in the files that CONTRIBUTING.md lists, and everything else follows.

A copy of the package gets one of each: a rule, an option, a format, a solver with a question, an
engine, a file of a site, and a fact of a diagnosis. `extended` then looks for them wherever they must
be.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedpca
import pages

ROOT = Path(__file__).parents[2]
PROOFS = Path(__file__).with_name("extended.py")
RULE = """
    max_columns: int | None = rule(
        None,
        least=1,
        off=None,
        prevents="Prevents runs over tables with more columns than this.",
        refuses_rows=lambda policy, rows: (
            None
            if policy.max_columns is None or rows.n_features <= policy.max_columns
            else f"the site has more columns than its policy's max_columns={policy.max_columns}"
        ),
    )

    def __post_init__"""
OPTION = """
    units: str | None = option(None, "Units of the rows, such as mm.", metavar="UNIT")
    # whether columns and log_normalize"""
FORMAT = '''
import numpy as np
from fedpca.rows.in_memory import DenseRows


def open_text(path):
    """Return the rows in a text file with numbers between spaces."""
    return DenseRows(np.loadtxt(path, ndmin=2))
'''
FILE = """
NOTES = Kind("*.notes", "notes", "restore the file", {"text": _is_text})
"""


def code_of(page):
    """The first block of code of a page."""
    return pages.blocks((ROOT / "docs" / "how-to" / page).read_text())[0].code


SOLVER = code_of("add-a-solver.md").replace(
    # a module of fedpca cannot import from fedpca as a whole
    "from fedpca import question",
    "from fedpca.protocol.question import question",
)
# for each thing to add: the text of a new file, or, for texts in a file, what stands in their place
ADDED = {
    "a rule of a policy": {"site/policy.py": {"\n    def __post_init__": RULE}},
    "an option for reading rows": {
        "rows/reading.py": {"\n    # whether columns and log_normalize": OPTION}
    },
    "a format of files": {
        "rows/formats/text.py": FORMAT,
        "rows/formats/files.py": {
            "\nfrom fedpca.rows.genotypes.genotype_rows": (
                "\nfrom fedpca.rows.formats.text import open_text"
                "\nfrom fedpca.rows.genotypes.genotype_rows"
            ),
            '    ".npy": Format(': '    ".txt": Format(_unnamed(open_text)),\n    ".npy": Format(',
        },
    },
    "a solver with its questions": {
        "solvers/exact/oversampled.py": SOLVER,
        "solvers/catalogue.py": {
            "\nfrom fedpca.solvers.exact.tsqr": (
                "\nfrom fedpca.solvers.exact.oversampled import Oversampled"
                "\nfrom fedpca.solvers.exact.tsqr"
            ),
            "        Average(),\n    )": "        Average(),\n        Oversampled(),\n    )",
        },
    },
    "an engine": {"engines/folder.py": code_of("add-an-engine.md")},
    "a file of a site": {"site/store.py": {"\nFILES = ": f"{FILE}\nFILES = "}},
    "a fact of a diagnosis": {
        "estimators/diagnosis.py": {
            'Section("cost", tuple(cost))': (
                'Section("weather", (Fact("wind", 7, COUNT, "wind on that day"),)), '
                'Section("cost", tuple(cost))'
            )
        }
    },
}


def listed():
    """For each thing to add, the files that CONTRIBUTING.md lists; a new file is in a folder."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE)
    return {what: set(re.findall(r"`([\w/.]+)`", files)) for what, files in table}


@pytest.mark.parametrize("what", ADDED)
def test_the_page_lists_the_files_that_change(what):
    changed = {
        f"{Path(name).parent}/" if isinstance(how, str) else name
        for name, how in ADDED[what].items()
    }
    assert listed()[what] == changed


@pytest.mark.process
def test_what_is_added_in_these_files_is_found_wherever_it_must_be(tmp_path):
    package = tmp_path / "scratch" / "fedpca"
    shutil.copytree(
        Path(fedpca.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for files in ADDED.values():
        for name, how in files.items():
            text = how if isinstance(how, str) else (package / name).read_text()
            for mark, new in {} if isinstance(how, str) else how.items():
                assert text.count(mark) == 1, (name, mark)
                text = text.replace(mark, new)
            (package / name).write_text(text)
    # in a process of its own, which imports the copy
    done = subprocess.run(
        [sys.executable, str(PROOFS), str(ROOT / "docs" / "make_reference.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package.parent)},
    )
    assert done.returncode == 0, done.stderr
    proven = json.loads(done.stdout.splitlines()[-1])
    assert set(proven) == set(ADDED)
    assert not any(proven.values()), "\n".join(proven.values())
