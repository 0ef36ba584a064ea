"""Run `fedpca budget`: show what a site has spent of its privacy budget."""

from __future__ import annotations

import json as json_text
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca.cli.console import exit_codes, out, say
from fedpca.cli.options import read_policy
from fedpca.cli.requests import Folder, Name
from fedpca.engines.default_locations import home
from fedpca.errors import InputError, LedgerError
from fedpca.privacy.gaussian import MAX_DELTA, MIN_DELTA, epsilon_of
from fedpca.protocol.printable import printable
from fedpca.report.tables import new_table, print_table
from fedpca.site.policy import Policy
from fedpca.site.privacy_budget import Release, Spent
from fedpca.site.requests import in_minutes
from fedpca.site.store import PRIVACY


def budget(
    name: Name = None,
    folder: Folder = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="TOML file with the policy that the site joins with, if it has one."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Delta that goes with each epsilon; by default, the delta in --policy, or 1e-6."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show how much of this site's privacy budget private runs have spent, and how much is left.

    Each noisy answer spends part of the budget, even if the run fails later. The total epsilon of
    several runs is less than the sum of their epsilons. The command also checks whether anybody altered
    the file in which the site counts what it spends. If somebody did, the exit code is 1.
    """
    with exit_codes():
        rules = Policy() if policy is None else read_policy(policy)
        delta = rules.delta if delta is None else delta
        if not MIN_DELTA <= delta <= MAX_DELTA:
            raise InputError(f"--delta must be from {MIN_DELTA:g} to {MAX_DELTA:g}, got {delta:g}")
        path = _file_of(name, folder)
        spent = Spent.read(path)
        if spent.problem:
            raise LedgerError(
                f"{path}: {spent.problem}; the {len(spent.releases)} answers before this point are "
                "verified"
            )
        found = contents(spent, rules, delta)
        if json:
            typer.echo(json_text.dumps(found, indent=2))
        else:
            _print(path, spent, found, "the default policy" if policy is None else str(policy))


def contents(spent: Spent, rules: Policy, delta: float) -> dict[str, Any]:
    """Return what each run spent, and what all runs spent in total, as plain values."""
    runs: dict[tuple[str, str], list[Release]] = {}
    for each in spent.releases:
        runs.setdefault((each.run, each.session), []).append(each)
    found: dict[str, Any] = {
        "delta": delta,
        "epsilon": _epsilon(spent.mu2, delta),
        "mu2": _plain(spent.mu2),
        "head": spent.heads[-1],
        "runs": [
            {
                "run": run,
                "time": of_run[0].time,
                "purpose": of_run[0].purpose,
                "releases": len(of_run),
                "epsilon": _epsilon(math.fsum(each.mu2 for each in of_run), delta),
            }
            for (run, _), of_run in runs.items()
        ],
    }
    if not rules.is_open:
        # the budget is defined at the policy's delta, but what is left is stated at the requested one
        left = max(0.0, rules.max_mu2 - spent.mu2)
        found |= {"total_epsilon": rules.total_epsilon, "left": _epsilon(left, delta)}
    return found


def _print(path: Path, spent: Spent, found: dict[str, Any], policy: str) -> None:
    table = new_table(None, ("since", "run", "purpose"), ("answers", "epsilon"))
    for each in found["runs"]:
        texts = [printable(each[name]) for name in ("run", "purpose")]
        table.add_row(
            in_minutes(each["time"]), *texts, str(each["releases"]), _in_words(each["epsilon"])
        )
    if found["runs"]:
        print_table(out, table)
    for note in spent.notes:
        say(note)
    say(
        f"{path}: {len(spent.releases)} answers in {len(found['runs'])} runs have spent epsilon "
        f"{_in_words(found['epsilon'])} at delta {found['delta']:g}, and the chain is whole"
    )
    if "left" in found:
        say(
            f"epsilon {_in_words(found['left'])} of {found['total_epsilon']:g} is left with {policy}"
        )


def _file_of(name: str | None, folder: Path | None) -> Path:
    """Return a site's budget file, found by name, by folder, or as the only one on this machine."""
    if name is not None:
        return PRIVACY.path(folder or home() / "sites" / name, name)
    where, pattern = folder or home() / "sites", PRIVACY.pattern
    found = sorted(where.glob(f"*/{pattern}" if folder is None else pattern))
    if len(found) != 1:
        how_many = "no site has" if not found else f"{len(found)} sites have"
        raise InputError(
            f"{how_many} spent budget in {where}; choose a site with the --name or --folder that "
            "you passed to fedpca join"
        )
    return found[0]


def _epsilon(mu2: float, delta: float) -> float | None:
    """Return the epsilon of a total mu^2 at a delta, or None if the epsilon is infinite."""
    return _plain(epsilon_of(math.sqrt(mu2), delta))


def _plain(value: float) -> float | None:
    return None if math.isinf(value) else value


def _in_words(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else f"{epsilon:.4g}"
