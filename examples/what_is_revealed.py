"""What each solver would reveal of four clinics: every message recorded, and attacked.

python examples/what_is_revealed.py
"""

from rich.console import Console

from fedpca import Policy, Site
from fedpca.demo import clinics
from fedpca.privacy.leakage import audit
from fedpca.report.tables import print_leakage

tables, _ = clinics()
silent = {name: Site(rows, name=name, policy=Policy(gather=False)) for name, rows in tables.items()}
sums_only = ["covariance", "lanczos", "power", "local-power", "faps"]
console = Console(width=100, highlight=False)
for heard, sites, options in (
    ("one fit", tables, {}),
    ("one fit and five refits", tables, {"refits": 5, "solvers": ["power", "faps"]}),
    ("one fit in which no site lets anything be gathered", silent, {"solvers": sums_only}),
    (
        "the same, and from east and south their own parts",
        silent,
        {"solvers": sums_only, "colluding": ["east", "south"]},
    ),
    (
        "the same, and from all but west their own parts",
        silent,
        {"solvers": ["lanczos", "faps"], "colluding": ["north", "east", "south"]},
    ),
):
    console.print(f"\nThe coordinator hears {heard}.")
    found = audit(sites, 5, scale=True, **{"refits": 0, **options})
    print_leakage(console, found, by_site=False)
