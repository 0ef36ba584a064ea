"""Write a policy as a file with comments, and explain what it allows and prevents."""

from __future__ import annotations

import json
import textwrap
from dataclasses import fields

from fedpca.protocol.plan import SECURE
from fedpca.site.policy import ANY, END, PRIVATE_RUNS, UNLIMITED, Policy

# what each rule prevents; this text becomes the comment above the rule's line
PREVENTS = {
    "allow": (
        "Prevents runs that nobody here has agreed to. federated: components of the pooled rows, from "
        "sums over sites. Open others by name: personalized, robust, merge, average, tsqr, or a solver "
        "from an installed package. any: every question, in any order and with any numbers."
    ),
    "gather": (
        "Keeps the coordinator from seeing numbers of this site alone, such as its own variance."
    ),
    "min_rows": "Prevents runs while this site has fewer rows than this.",
    "min_count": (
        "Prevents counts and sums over fewer rows than this, columns in which fewer rows differ from "
        "the most frequent value, and missing='drop' if it leaves out fewer rows. 1 turns it off."
    ),
    "min_sites": "Prevents runs with fewer sites, in whose sums this site would stand out.",
    "peers": (
        "Keeps a coordinator from inventing sites: the fingerprints of the other sites' keys, which "
        "`fedpca site-key --show NAME.pub` prints. Empty: any sites. Needed for min_sites above 1 and "
        "for require."
    ),
    "approval": "Prevents runs that no person here has approved with `fedpca approve`.",
    "approval_days": "Prevents requests and approvals that last longer than this many days.",
    "min_change": (
        "Keeps the difference between two runs from describing few rows: if the files have changed, at "
        "least this many rows must have. By default, min_count. 1 turns it off."
    ),
    "max_runs_per_day": (
        "Prevents many runs, which together tell more than one. Counted over 24 hours. "
        f'"{UNLIMITED}" turns it off.'
    ),
    "max_rounds_per_day": (
        f'Prevents the same for rounds; a fit takes 5 to 500. "{UNLIMITED}" turns it off.'
    ),
    "max_attempts": (
        "Keeps a run from beginning more often than this, each time without some sites; the difference "
        "of two sums describes the sites that were left out."
    ),
    "require": (
        'Keeps the coordinator from reading what this site adds to a sum: "secure" takes part only in '
        'runs with secure sums over two sites or more, and needs peers. "private" keeps results from '
        "describing single rows: it takes part only in runs in which every answer has noise. Empty: "
        "takes part in all runs."
    ),
    "max_epsilon": (
        "Keeps all private runs together, ever, from telling more about a single row than this epsilon "
        "allows, and other runs from telling anything. `fedpca budget` says what was spent. "
        f'"{UNLIMITED}" turns it off.'
    ),
    "delta": "The probability that max_epsilon fails; choose it far below one over the number of rows.",
}
TITLE = (
    "# What this site takes part in, and what it tells. `fedpca policy --explain FILE` says more."
)
WIDTH = 96  # characters of a comment line


def policy_text(policy: Policy) -> str:
    """Return a policy as the text of a file, with a comment on what each rule prevents."""
    lines = [TITLE, ""]
    for field in fields(policy):
        value = getattr(policy, field.name)
        lines += [f"# {line}" for line in textwrap.wrap(PREVENTS[field.name], WIDTH)]
        if field.name == "min_change" and value is None:
            lines.append(f"# {field.name} = {policy.least_change}")
        else:
            lines.append(f"{field.name} = {_as_toml(value)}")
        lines.append("")
    lines.append(f"{END} = true  # the last line, so that a file that was cut off is refused")
    return "\n".join(lines) + "\n"


def explain(policy: Policy) -> list[str]:
    """Return sentences that say what a policy allows and what it prevents."""
    told = []
    if policy.is_open:
        told.append(
            f"allow has {ANY!r}: the site answers every installed question, in any order and with any "
            "numbers; whoever has the coordinator's secret can reconstruct single rows"
        )
    elif policy.allow:
        told.append(
            f"the site takes part in {', '.join(policy.allow)}, and answers only what a declared plan "
            "asks, in its order"
        )
    else:
        told.append("the site takes part in no run, because allow is empty")
    told.append(
        "gather: the coordinator may see this site's own answers about its rows, such as its variance"
        if policy.gather
        else "gather: the coordinator gets sums over sites; of this site alone, only column names"
    )
    told.append(
        f"min_rows: the site must have at least {policy.min_rows:,} rows"
        if policy.min_rows
        else "min_rows is 0: this rule sets no minimum"
    )
    told.append(
        f"min_count: no count or sum over fewer than {policy.min_count} rows leaves the site; "
        "columns in which fewer rows differ from the most frequent value are refused by name"
        if policy.min_count > 1
        else "min_count is 1: counts and sums may be about a single row"
    )
    told.append(
        f"min_sites: a run must have at least {policy.min_sites} sites"
        if policy.min_sites > 1
        else "min_sites is 1: this site may be the only one in a run"
    )
    told.append(
        f"peers: only sites with one of {len(policy.peers)} known keys may take part"
        if policy.peers
        else "peers: any sites may take part, even sites that a coordinator invents"
    )
    told.append(
        f"approval: a person here approves each run; approval_days: requests and approvals end after "
        f"{policy.approval_days} days"
        if policy.approval
        else "approval: no person has to approve a run, so approval_days has no effect"
    )
    told.append(
        f"min_change: if the files have changed, at least {policy.least_change} rows must have changed "
        "since the last run"
        if policy.least_change > 1
        else "min_change is 1: the difference between two runs may describe a single row"
    )
    for name, kind in (("max_runs_per_day", "runs"), ("max_rounds_per_day", "rounds")):
        limit = getattr(policy, name)
        amount = f"any number of {kind}" if limit is None else f"at most {limit:,} {kind}"
        told.append(f"{name}: {amount} in 24 hours")
    told.append(
        f"max_attempts: a run that loses sites may begin {policy.max_attempts} times in all"
    )
    told.append(
        "require: only runs with secure sums, in which the coordinator can read only totals"
        if SECURE in policy.require
        else "require: no secure sums, so the coordinator's process can read what this site adds to one"
    )
    if PRIVATE_RUNS in policy.require:
        told.append("require: only private runs, in which every answer about rows has noise in it")
    told.append(
        f"max_epsilon: all private runs together keep epsilon {policy.max_epsilon:g} at delta "
        f"{policy.delta:g} for each row, and the site takes part in no others"
        if policy.max_epsilon is not None
        else "max_epsilon: no privacy budget, so delta has no effect"
    )
    return told


def _as_toml(value: object) -> str:
    if value is None:
        return f'"{UNLIMITED}"'
    # strings, lists, numbers, and booleans look the same in JSON
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
