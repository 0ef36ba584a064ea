"""Run `fedpca site-key`: create a key pair for a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, say


def site_key(
    name: Annotated[str, typer.Argument(help="The site's name.")],
    folder: Annotated[Path, typer.Option(help="Folder for the two key files.")] = Path(),
) -> None:
    """Create a key pair for a site.

    NAME is the site's name. Keep NAME.key at the site, and send NAME.pub to the coordinator.
    """
    with exit_codes():
        from fedpca.engines.credentials import make_site_key

        private_path, public_path = make_site_key(folder, name)
        say(f"Wrote {private_path}; keep it secret at the site")
        say(f"Wrote {public_path}; send it to the coordinator")
