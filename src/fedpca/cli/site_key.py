"""Run `fedpca site-key`: create a key pair for a site, or show the fingerprint of a key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, say
from fedpca.cli.options import Json
from fedpca.cli.terminal import print_json
from fedpca.errors import InputError


def site_key(
    name: Annotated[str | None, typer.Argument(help="The site's name.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder for the two key files.")] = Path(),
    show: Annotated[
        Path | None, typer.Option(help="Only print the fingerprint of this key file.")
    ] = None,
    json: Json = False,
) -> None:
    """Create a key pair for a site.

    NAME is the site's name. Keep NAME.key at the site, and send NAME.pub to the coordinator. Both
    files have the same fingerprint. Compare fingerprints over the phone, to make sure that nobody
    replaced NAME.pub on the way.
    """
    with exit_codes(json=json):
        from fedpca.engines.credentials import fingerprint, make_site_key, public_key_in

        if (name is None) == (show is None):
            raise InputError(
                "give either the name of a site, to create its keys, or --show NAME.pub, but not both"
            )
        private, public = (None, show) if name is None else make_site_key(folder, name)
        mark = "" if public is None else fingerprint(public_key_in(public))
        if json:
            print_json({"private_key": _text(private), "key": _text(public), "fingerprint": mark})
        elif name is None:
            say(mark)
        else:
            say(f"Wrote {private}; keep it secret at the site")
            say(f"Wrote {public}; send it to the coordinator")
            say(f"Its fingerprint is {mark}")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
