"""Run `fedpca site-key`: make a key pair for a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, say


def site_key(
    name: Annotated[str, typer.Argument(help="The site's name.")],
    folder: Annotated[Path, typer.Option(help="Folder to write the two files to.")] = Path(),
) -> None:
    """Make a key pair for a site.

    NAME is the site's name. NAME.key stays at the site, and NAME.pub goes to the coordinator.
    """
    with exit_codes():
        from fedpca.engines.credentials import make_site_key

        private_path, public_path = make_site_key(folder, name)
        say(f"Wrote {private_path}: keep it secret, at the site")
        say(f"Wrote {public_path}: send it to the coordinator")
