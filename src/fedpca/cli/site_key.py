"""Run `fedpca site-key`: create a key pair for a site, or show the fingerprint of a key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, say
from fedpca.errors import InputError


def site_key(
    name: Annotated[str | None, typer.Argument(help="The site's name.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder for the two key files.")] = Path(),
    show: Annotated[
        Path | None, typer.Option(help="Only print the fingerprint of this key file.")
    ] = None,
) -> None:
    """Create a key pair for a site.

    NAME is the site's name. Keep NAME.key at the site, and send NAME.pub to the coordinator. Both
    files have the same fingerprint. Compare fingerprints over the phone, to make sure that nobody
    replaced NAME.pub on the way.
    """
    with exit_codes():
        from fedpca.engines.credentials import fingerprint, make_site_key, public_key_in

        if (name is None) == (show is None):
            raise InputError(
                "give either the name of a site, to create its keys, or --show NAME.pub, but not both"
            )
        if show is not None:
            say(fingerprint(public_key_in(show)))
        if name is not None:
            private_path, public_path = make_site_key(folder, name)
            say(f"Wrote {private_path}; keep it secret at the site")
            say(f"Wrote {public_path}; send it to the coordinator")
            say(f"Its fingerprint is {fingerprint(public_key_in(public_path))}")
