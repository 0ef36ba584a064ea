"""Run `fedpca approve`: let a run begin at this site."""

from __future__ import annotations

from fedpca.cli.console import exit_codes
from fedpca.cli.requests import Folder, Name, Run, describe, requests_of


def approve(run: Run, name: Name = None, folder: Folder = None) -> None:
    """Approve a run, so that this site takes part in it.

    The approval is for the plan that the command prints, and for nothing else. It lasts as many days as
    the site's policy says. Use `fedpca deny` to take it back.
    """
    with exit_codes():
        requests = requests_of(name, folder)
        describe(requests.approve(requests.named(run)))
