"""Attack three made-up clinics as a lying coordinator would, and print what it recovers.

python examples/lying_coordinator.py
python examples/lying_coordinator.py "far mean"    # only the attacks that are named
python examples/lying_coordinator.py --write       # puts the tables into docs/privacy.md
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedpca.audit.lying import ATTACKS, OWN, PUBLISHED, Lying, attack_site
from fedpca.site.policy import JOINING

PAGE = Path(__file__).parents[1] / "docs" / "privacy.md"

# Each clinic has 8 measurements of 100 patients, in different units.
rng = np.random.default_rng(0)
mixing = rng.normal(size=(8, 8)) * np.geomspace(20, 0.5, 8)
clinics = {
    clinic: rng.normal(size=(100, 8)) @ mixing + rng.uniform(0, 100, 8)
    for clinic in ("north", "east", "south")
}


def as_markdown(lying: Lying, policies=None):
    """Return a table of what each attack recovers under some policies; by default, under all."""
    policies = list(lying.policies if policies is None else policies)
    lines = [f"| attack | {' | '.join(policies)} |", f"|---|{'---|' * len(policies)}"]
    for attack in lying.attacks:
        outcomes = [lying.of(attack, policy) for policy in policies]
        cells = [
            f"**{each.in_words}**, {each.questions:,} questions" if each.has_found else "nothing"
            for each in outcomes
        ]
        lines.append(f"| {attack} | {' | '.join(cells)} |")
    return "\n".join(lines)


chosen = [word for word in sys.argv[1:] if word != "--write"] or list(ATTACKS)
if "--write" in sys.argv and len(chosen) < len(ATTACKS):
    sys.exit("the page must have all attacks; use --write without names")
groups = {"lying_coordinator.py": OWN, "lying_coordinator.py, published": PUBLISHED}
tables = {}
for title, group in groups.items():
    attacks = [name for name in chosen if name in group]
    if attacks:
        tables[title] = as_markdown(attack_site(clinics, attacks=attacks))

# Compare two policies that allow robust PCA by name; the second allows only one run a day.
allowed = replace(JOINING, allow=("federated", "robust"))
policies = {"robust allowed": allowed, "one run a day": replace(allowed, max_runs_per_day=1)}
asks_robust = [name for name in chosen if "RobustPCA" in str(ATTACKS[name].plans)]
if asks_robust:
    found = attack_site(clinics, policy=policies, attacks=asks_robust)
    tables["lying_coordinator.py, robust"] = as_markdown(found, policies)

page = PAGE.read_text(encoding="utf-8")
for name, table in tables.items():
    print(table, end="\n\n")
    before, begin, rest = page.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("\n<!-- end -->")
    if not begin or not end:
        sys.exit(f"{PAGE} has no place for the table, between <!-- {name} --> and <!-- end -->")
    page = f"{before}{begin}{table}{end}{after}"
if "--write" in sys.argv:
    PAGE.write_text(page, encoding="utf-8")
