"""What each solver would reveal of four clinics: every message recorded, and attacked.

python examples/what_is_revealed.py
"""

from rich.console import Console

from fedpca.demo import clinics
from fedpca.privacy.leakage import leakage
from fedpca.report.tables import print_leakage

tables, _ = clinics()
console = Console(width=100, highlight=False)
for heard, options in {
    "one fit": {"refits": 0},
    "one fit and five refits from other starts": {"refits": 5},
    "one fit, and from east and south their own parts": {
        "refits": 0,
        "colluding": ["east", "south"],
    },
}.items():
    console.print(f"\nThe coordinator hears {heard}.")
    print_leakage(console, leakage(tables, 5, scale=True, **options), by_site=False)
