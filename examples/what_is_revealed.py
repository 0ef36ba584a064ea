"""Show what each solver reveals about four clinics: record every message, and attack the records.

python examples/what_is_revealed.py
"""

import numpy as np
import pyarrow as pa
from rich.console import Console
from sklearn.datasets import load_breast_cancer

from fedpca import Policy, Site
from fedpca.audit.leakage import audit
from fedpca.cli.terminal import print_facts

# Assign patients to clinics by tumor size, and give each clinic a different column order.
data = load_breast_cancer()
by_size = np.argsort(data.data[:, 0], kind="stable")
clinics = zip(("north", "east", "south", "west"), np.split(by_size, [60, 200, 420]), strict=True)
tables = {}
for i, (clinic, patients) in enumerate(clinics):
    order = np.roll(np.arange(30), i)
    tables[clinic] = pa.table({data.feature_names[j]: data.data[patients, j] for j in order})

silent = {name: Site(rows, name=name, policy=Policy(gather=False)) for name, rows in tables.items()}
sums_only = ["covariance", "lanczos", "subspace-iteration", "local-power", "faps"]
console = Console(width=100, highlight=False)
for heard, sites, options in (
    ("one fit", tables, {}),
    ("one fit and five refits", tables, {"refits": 5, "solvers": ["subspace-iteration", "faps"]}),
    ("one fit in which no site allows gathering", silent, {"solvers": sums_only}),
    (
        "the same fit, plus the individual answers of east and south",
        silent,
        {"solvers": sums_only, "colluding": ["east", "south"]},
    ),
    (
        "the same fit, plus the individual answers of every site except west",
        silent,
        {"solvers": ["lanczos", "faps"], "colluding": ["north", "east", "south"]},
    ),
):
    console.print(f"\nThe coordinator observes {heard}.")
    found = audit(sites, 5, scale=True, **{"refits": 0, **options})
    print_facts(console, found.facts())
