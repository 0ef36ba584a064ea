"""The commands of a federation across machines: `fedpca serve | join | site-key`."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedpca.errors import InputError
from fedpca.policy import Policy
from fedpca.shell import Insecure, Quiet, Tls, err, exit_codes, out, until_stopped
from fedpca.site import Site
from fedpca.site_ledger import SiteLedger, size
from fedpca.whereabouts import PORT, coordinator_folder, home, with_port


def serve(
    keys: Annotated[list[Path], typer.Argument(help="The public keys of the sites, NAME.pub.")],
    tls: Tls = None,
    make_certificates: Annotated[
        bool, typer.Option("--make-certificates", help="Make certificates where there are none.")
    ] = False,
    known_as: Annotated[
        list[str], typer.Option(help="A name or address of this server in made certificates.")
    ] = [],  # noqa: B006
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=1, max=65535)] = PORT,
    insecure: Insecure = False,
    quiet: Quiet = False,
) -> None:
    """Serve the sites and the coordinator's fits until stopped.

    Sites get in whose public keys are given here, and no others.
    """
    with until_stopped():
        from fedpca import credentials
        from fedpca.engines.flower.link import serve as serve_link

        folder = coordinator_folder(tls)
        sites = credentials.read_public_keys(keys)
        if make_certificates and not (folder / credentials.KEY).exists():
            credentials.make_certificates(folder, known_as)
            _say(f"Wrote {folder / credentials.CA}: give it to the sites")
        certificate, key = (None, None) if insecure else credentials.server_files(folder)
        secret = credentials.make_secret(folder)
        tell = _teller("server", quiet)
        manner = "plain HTTP, not encrypted" if insecure else "TLS"
        tell(f"{len(sites)} sites may join on port {port} ({manner}): {', '.join(sites)}")
        tell(f"whoever has {folder / credentials.SECRET} may ask them")
        serve_link(
            host,
            port,
            sites=sites,
            secret=secret,
            certificate=certificate,
            key=key,
            tell=tell,
        )


def join(
    address: Annotated[str, typer.Argument(metavar="HOST", help="HOST or HOST:PORT to join.")],
    data: Annotated[
        list[str], typer.Option(help="Rows: files or a folder; all of them are this site's.")
    ],
    key: Annotated[Path, typer.Option(help="The site's key, NAME.key.")],
    # what a shell makes of --data *.parquet
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    name: Annotated[
        str | None, typer.Option(help="The site's name; that of the key's file by default.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="ca.pem of the coordinator; else the usual authorities.")
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="What may be asked, a TOML file.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the site keeps its memory and its ledger.")
    ] = None,
    insecure: Insecure = False,
    quiet: Quiet = False,
) -> None:
    """Take part in a federation with this machine's rows, until stopped.

    Rows stay here. What is asked and what leaves is told, and written to the site's own ledger.
    """
    with until_stopped():
        from fedpca import credentials
        from fedpca.engines.flower.node import join as join_link
        from fedpca.engines.flower.reach import Link

        if insecure and ca is not None:
            raise InputError("--insecure has no use for --ca; leave one of them out")
        site_name = name or key.stem
        store = folder or home() / "sites" / site_name
        link = Link(
            with_port(address),
            None if ca is None else credentials.read_authority(ca),
            plain=insecure,
        )
        private_key = credentials.read_site_key(key)
        site = Site(
            [*data, *(more or [])],
            name=site_name,
            policy=None if policy is None else Policy.load(policy),
            store=store,
        )
        store.mkdir(parents=True, exist_ok=True, mode=0o700)
        ledger = store / "ledger.jsonl"
        tell = _teller(site_name, quiet)
        tell(size(site.rows))
        tell(f"policy: {site.policy.in_words()}; what leaves is written to {ledger}")
        join_link(link, private_key, SiteLedger(site, ledger, tell).answer, tell)


def site_key(
    name: Annotated[str, typer.Argument(help="The site's name.")],
    folder: Annotated[Path, typer.Option(help="Where the two files go.")] = Path(),
) -> None:
    """Make a key for a site: NAME.key stays there, NAME.pub goes to the coordinator."""
    with exit_codes():
        from fedpca import credentials

        private_path, public_path = credentials.make_site_key(folder, name)
        _say(f"Wrote {private_path}: keep it at the site, and to yourself")
        _say(f"Wrote {public_path}: send it to the coordinator")


def _say(text: str) -> None:
    out.print(text, soft_wrap=True)  # a path must not be cut


def _teller(name: str, quiet: bool) -> Callable[[str], None]:
    """Says what happens, with the time and the name; what stays the same, once a minute."""
    last = "", 0.0

    def tell(text: str) -> None:
        nonlocal last
        if quiet or (text == last[0] and time.monotonic() - last[1] < 60):
            return
        last = text, time.monotonic()
        now = datetime.datetime.now().astimezone()
        err.print(f"{now:%Y-%m-%d %H:%M:%S} {name}: {text}", soft_wrap=True)

    return tell
