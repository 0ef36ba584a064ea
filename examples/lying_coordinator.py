"""Attack three made-up clinics as a coordinator that lies would, and print what it recovers.

python examples/lying_coordinator.py
python examples/lying_coordinator.py --write    # puts the table into docs/privacy.md
"""

import sys
from pathlib import Path

import numpy as np

from fedpca.audit.lying import attack_site
from fedpca.report.tables import lying_as_markdown

PAGE = Path(__file__).parents[1] / "docs" / "privacy.md"
BEGIN, END = "<!-- lying_coordinator.py -->\n", "\n<!-- end -->"

# Each clinic has 100 patients and 8 measurements, in units of their own.
rng = np.random.default_rng(0)
mixing = rng.normal(size=(8, 8)) * np.geomspace(20, 0.5, 8)
clinics = {
    clinic: rng.normal(size=(100, 8)) @ mixing + rng.uniform(0, 100, 8)
    for clinic in ("north", "east", "south")
}

found = attack_site(clinics)
table = lying_as_markdown(found)
print(table)
if "--write" in sys.argv:
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE} has no place for the table, between {BEGIN.strip()} and {END.strip()}")
    PAGE.write_text(f"{before}{BEGIN}{table}{END}{after}", encoding="utf-8")
