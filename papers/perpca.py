"""What "Personalized PCA: decoupling shared and unique features" reports, beside what we find.

    python papers/perpca.py --data DIR                    every section
    python papers/perpca.py problems starts               some of them
    python papers/perpca.py --data DIR --figures DIR      draw figures too
    python papers/perpca.py --quick --check               small, and exit 1 where a target is missed

Sections on generated data: ``problems`` (rounds on four problems), ``starts`` (how often each method
fails), ``figure3`` (what misaligned sites do for convergence), ``figure4``, ``figure5`` and ``figure6``
(errors against rows, features and sites), ``table2`` (what sites gain from each other), ``table3``
(too many components; Figures 7 and 8) and ``figure9`` (groups of sites). Its uses: ``table4`` (icons),
``table5`` (images of many holders), ``table6`` (a video) and ``table7`` (words of debates), for which
`perpca_uses` says what is read from ``--data`` or the folder that FEDPCA_DATA names.

The paper (Shi and Kontar, 2024) prints few numbers and many curves, and does not tell all variances,
steps and sizes; what is chosen here in their place is said where it is used. The half of the sites
that has fewer rows has a fifth of them here. No mean is taken off generated rows.
"""

from __future__ import annotations

from perpca_errors import figure4, figure5, figure6, table2
from perpca_ranks import figure9, table3
from perpca_synthetic import figure3, problems, starts
from perpca_uses import table4, table5, table6, table7
from sections import run_sections

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
