"""Run `fedpca approve`: let a run begin at this site."""

from __future__ import annotations

from fedpca.cli.console import exit_codes
from fedpca.cli.options import Json
from fedpca.cli.requests import Folder, Name, Run, requests_of
from fedpca.cli.terminal import show


def approve(run: Run, name: Name = None, folder: Folder = None, json: Json = False) -> None:
    """Approve a run, so that this site takes part in it.

    The approval is only for the plan that the command prints. It lasts for the number of days that the
    site's policy sets. Use `fedpca deny` to take the approval back.
    """
    with exit_codes(json=json):
        requests = requests_of(name, folder)
        show(requests.approve(requests.named(run)).facts(), json=json)
