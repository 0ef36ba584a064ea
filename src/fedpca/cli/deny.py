"""Run `fedpca deny`: keep this site out of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from fedpca.cli.console import exit_codes
from fedpca.cli.options import Json
from fedpca.cli.requests import Folder, Name, Run, requests_of
from fedpca.cli.terminal import show


def deny(
    run: Run,
    reason: Annotated[str, typer.Option(help="Reason to give to the coordinator.")] = "",
    name: Name = None,
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Deny a run, or take back its approval.

    A run that has begun stops at its next question. The coordinator cannot request the same run again.
    """
    with exit_codes(json=json):
        requests = requests_of(name, folder)
        show(requests.deny(requests.named(run), reason).facts(), json=json)
