"""Run `fedpca serve`: run the coordinator's server, through which fits reach the sites."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import say, teller, until_stopped
from fedpca.cli.live import Page, PageAt, each_of, harmless, live_page
from fedpca.cli.options import Credentials, Insecure, Quiet
from fedpca.engines.default_locations import PORT, coordinator_folder
from fedpca.report.boards import ServerBoard


def serve(
    keys: Annotated[list[Path], typer.Argument(help="The sites' public key files, NAME.pub.")],
    credentials: Credentials = None,
    make_certificates: Annotated[
        bool, typer.Option("--make-certificates", help="Create certificates if there are none.")
    ] = False,
    known_as: Annotated[
        list[str],
        typer.Option(
            help="With --make-certificates: name or address of the server; may be repeated."
        ),
    ] = [],  # noqa: B006
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = PORT,
    insecure: Insecure = False,
    page: Page = False,
    page_at: PageAt = None,
    quiet: Quiet = False,
) -> None:
    """Run the coordinator's server until stopped.

    KEYS are the sites' public key files, which `fedpca site-key` writes to NAME.pub. Only sites with
    one of these keys can join.
    """
    with until_stopped(), ExitStack() as at_end:
        from fedpca.engines import credentials as files
        from fedpca.engines.flower.server import serve as serve_sites

        folder = coordinator_folder(credentials)
        sites = files.read_public_keys(keys)
        if make_certificates and not (folder / files.KEY).exists():
            files.make_certificates(folder, known_as)
            say(f"Wrote {folder / files.CA}; give it to the sites")
        certificate, key = (None, None) if insecure else files.server_files(folder)
        secret = files.make_secret(folder)
        is_new = not (folder / files.COORDINATOR_PUBLIC).exists()
        mark = files.fingerprint(files.make_coordinator_key(folder).public_key())
        if is_new:
            say(f"Wrote {folder / files.COORDINATOR_PUBLIC}; give it to the sites")
            say(f"Its fingerprint is {mark}")
        board = ServerBoard(f"{host}:{port}", sites)
        at_end.enter_context(live_page(board.feed, page, page_at, quiet))
        tell = each_of(teller("server", quiet), harmless(board.tell))
        manner = "plain HTTP, not encrypted" if insecure else "TLS"
        tell(f"{len(sites)} sites may join on port {port} ({manner}): {', '.join(sites)}")
        tell(f"anyone with {folder / files.SECRET} can ask the sites questions")
        serve_sites(
            host,
            port,
            sites=sites,
            secret=secret,
            certificate=certificate,
            key=key,
            tell=tell,
            on_sites=harmless(board.show_sites),
        )
