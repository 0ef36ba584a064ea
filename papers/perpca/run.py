"""Compare what "Personalized PCA: decoupling shared and unique features" reports with what we find.

    python papers/perpca/run.py --data DIR                    every section
    python papers/perpca/run.py problems starts               some of them
    python papers/perpca/run.py --data DIR --figures DIR      draw figures too
    python papers/perpca/run.py --quick --check               small, and exit 1 if a target is missed

Sections on generated data: ``problems`` (rounds on four problems), ``starts`` (how often each method
fails), ``figure3`` (how misaligned sites help convergence), ``figure4``, ``figure5`` and ``figure6``
(errors against rows, features and sites), ``table2`` (what sites gain from each other), ``table3``
(too many components; Figures 7 and 8) and ``figure9`` (groups of sites). Its uses: ``table4`` (icons),
``table5`` (images at many sites), ``table6`` (a video) and ``table7`` (words of debates). The last
three read omniglot28.npz, cifar10_20k.npz, highway_video.npz and debates.parquet from ``--data`` or the
folder that FEDPCA_DATA names.

The paper (Shi and Kontar, 2024) prints few numbers and many curves. It does not give all variances,
steps and sizes; the code says where we chose them. Half of its sites have fewer rows: here a fifth of
the others' rows. Generated rows are not centered.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder of all papers

from perpca.errors import figure4, figure5, figure6, table2
from perpca.pictures import table4, table6
from perpca.ranks import figure9, table3
from perpca.synthetic import figure3, problems, starts
from perpca.uses import table5, table7
from shared.sections import run_sections

SECTIONS = {
    "problems": problems,
    "starts": starts,
    "figure3": figure3,
    "figure4": figure4,
    "figure5": figure5,
    "figure6": figure6,
    "table2": table2,
    "table3": table3,
    "figure9": figure9,
    "table4": table4,
    "table5": table5,
    "table6": table6,
    "table7": table7,
}

if __name__ == "__main__":
    run_sections(__doc__, SECTIONS, seeds=5, quick_seeds=2)
