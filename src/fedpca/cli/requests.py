"""Run `fedpca requests`: show the runs that asked a person at this site for approval."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca.cli.console import exit_codes, say
from fedpca.engines.default_locations import home
from fedpca.errors import InputError
from fedpca.protocol.plan import PRIVATE, RunPlan
from fedpca.protocol.printable import printable
from fedpca.site.requests import APPROVED, DENIED, Request, Requests, in_minutes
from fedpca.site.store import REQUESTS

MAX_SHOWN = 2000  # longest line of parameters, purpose, or sites

Run = Annotated[str, typer.Argument(help="The run's name, or the beginning of it.")]
Name = Annotated[
    str | None,
    typer.Option(help="The site's name; by default, that of the only site on this machine."),
]
Folder = Annotated[
    Path | None,
    typer.Option(help="The folder in which the site keeps its files, as for `fedpca join`."),
]


def requests(
    name: Name = None,
    folder: Folder = None,
    json: Annotated[bool, typer.Option("--json", help="Print the requests as JSON.")] = False,
) -> None:
    """Show the runs that asked a person at this site for approval.

    Runs need approval if the site's policy has `approval = true`. Use `fedpca approve` or `fedpca deny`
    to decide.
    """
    with exit_codes():
        found = requests_of(name, folder).all()
        if json:
            typer.echo(json_text.dumps([contents(request) for request in found], indent=2))
        elif not found:
            say("no run has asked for approval here")
        for request in [] if json else found:
            describe(request)


def requests_of(name: str | None, folder: Path | None) -> Requests:
    """Return the requests of a named site, of the site with a folder, or of the only site here."""
    if name is not None:
        return Requests(REQUESTS.path(folder or home() / "sites" / name, name))
    where, pattern = folder or home() / "sites", REQUESTS.pattern
    found = sorted(where.glob(f"*/{pattern}" if folder is None else pattern))
    if len(found) > 1:
        raise InputError(f"several sites keep requests in {where}; choose one with --name")
    if not found and not where.is_dir():
        raise InputError(
            f"{where} does not exist; use the --name or --folder that you passed to fedpca join"
        )
    return Requests(found[0] if found else where)


def describe(request: Request) -> None:
    """Print a request, with all text escaped, because a plan can contain any text."""
    plan, until = request.declared, in_minutes(request.until)
    words = {
        APPROVED: f"approved {in_minutes(request.decided or request.since)}, until {until}",
        DENIED: f"denied {in_minutes(request.decided or request.since)}",
    }
    state = request.state
    say(f"run {printable(request.run)}: {words.get(state, f'{state}, until {until}')}")
    parameters = [f"{key}={json_text.dumps(value)}" for key, value in plan.parameters.items()]
    lines = {
        "asked": in_minutes(request.since),
        "program": plan.program,
        "solver": plan.solver,
        "parameters": ", ".join(parameters),
        "sites": ", ".join(f"{site} ({key[:16] or 'no key'})" for site, key in plan.sites.items()),
        "quorum": f"the run may go on with {plan.fewest_sites} of these {len(plan.sites)} sites",
        "sums": "secure" if plan.is_secure else "plain: the coordinator can read each site's part",
        "privacy": _promise(plan),
        "signed by": request.signer or "nobody",
        "purpose": plan.purpose or "not given",
        "reason": request.reason,
    }
    for label, text in lines.items():
        if text:
            say(f"  {label:11} {printable(text, MAX_SHOWN)}")


def _promise(plan: RunPlan) -> str:
    """Return what a run promises about each row, with any settings that its plan declares."""
    given = plan.privacy.get(PRIVATE)
    if given is None:
        return "none: answers have no noise in them"
    first = {name: given[name] for name in ("epsilon", "delta", "row_bound") if name in given}
    return ", ".join(f"{key}={json_text.dumps(value)}" for key, value in {**first, **given}.items())


def contents(request: Request) -> dict[str, Any]:
    """Return a request as plain values."""
    plan = request.declared
    return {
        "run": request.run,
        "state": request.state,
        "since": request.since,
        "until": request.until,
        "decided": request.decided,
        "reason": request.reason,
        "program": plan.program,
        "solver": plan.solver,
        "parameters": dict(plan.parameters),
        "sites": dict(plan.sites),
        "quorum": plan.fewest_sites,
        "secure": plan.is_secure,
        "privacy": plan.privacy.get(PRIVATE),
        "signer": request.signer,
        "purpose": plan.purpose,
        "digest": plan.digest,
    }
