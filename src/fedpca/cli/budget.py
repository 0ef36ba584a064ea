"""Run `fedpca budget`: show what a site has spent of its privacy budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes
from fedpca.cli.options import Json, read_policy
from fedpca.cli.requests import Folder, Name
from fedpca.cli.terminal import show
from fedpca.engines.default_locations import home
from fedpca.errors import InputError, LedgerError
from fedpca.privacy.gaussian import MAX_DELTA, MIN_DELTA
from fedpca.site.policy import Policy
from fedpca.site.privacy_budget import Spent
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
    json: Json = False,
) -> None:
    """Show how much of this site's privacy budget private runs have spent, and how much is left.

    Each noisy answer spends part of the budget, even if the run fails later. The total epsilon of
    several runs is less than the sum of their epsilons. The command also checks whether anybody altered
    the file in which the site counts what it spends. If somebody did, the exit code is 1.
    """
    with exit_codes(json=json):
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
        show(spent.facts(rules, delta), json=json)


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
