"""Run `fedpca audit`: attack the messages that each solver would send."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedpca.audit import leakage
from fedpca.audit.exposures import Exposure, Leakage
from fedpca.audit.lying import ATTACKS, attack_site
from fedpca.cli.console import exit_codes, out, refuse_overwriting
from fedpca.cli.info import refuse_both
from fedpca.cli.methods import NO_METHOD, Method, names_of_solvers
from fedpca.cli.option_groups import LeftOut, given_options, with_groups
from fedpca.cli.options import FILES, Databases, Force, Json, Quiet, opened_sites, sources_of
from fedpca.cli.progress import OnDone, counting
from fedpca.cli.terminal import show
from fedpca.errors import InputError
from fedpca.facts import Records, find
from fedpca.report.contents import as_csv, records_as_csv
from fedpca.report.drawing import check_plot_file, pyplot, save_figure
from fedpca.report.privacy_displays import LeakDisplay
from fedpca.rows.reading import AS_STORED, Reading
from fedpca.site.policy import Policy
from fedpca.site.site import Site
from fedpca.solvers import SOLVERS
from fedpca.storage import atomic

ATTACKED = dict.fromkeys(
    ("kind", "shared", "local", "gather", "max_components"), "an audit is about FederatedPCA"
) | {
    "solver": "an audit attacks several solvers",
    "solver_option": "solvers are attacked with their usual options",
}


@with_groups
def audit(
    files: Annotated[list[str] | None, typer.Argument(help=FILES)] = None,
    databases: Databases = [],  # noqa: B006
    method: Annotated[Method, LeftOut(ATTACKED)] = NO_METHOD,
    solver: Annotated[
        list[str],
        typer.Option(
            help=f"Solver to attack: all, or one of {', '.join(SOLVERS)}; may be repeated.",
            autocompletion=names_of_solvers,
        ),
    ] = ["all"],  # noqa: B006
    reading: Reading = AS_STORED,
    refits: Annotated[
        int,
        typer.Option(
            help="Number of additional fits, from different starts, that the attacker sees."
        ),
    ] = 5,
    colluding: Annotated[
        list[str],
        typer.Option(
            help="Site that reveals its part of each sum to the coordinator; may be repeated."
        ),
    ] = [],  # noqa: B006
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Also attack the solver faps by simulation (slow).")
    ] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Attack fits that use secure sums.")
    ] = False,
    by_site: Annotated[
        bool, typer.Option("--by-site", help="Print every site, not just the most exposed site.")
    ] = False,
    table: Annotated[
        Path | None, typer.Option(help="Write the result of every attack to this file (.csv).")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write a plot of the errors to this file (.svg, .png, .pdf)."),
    ] = None,
    lying: Annotated[
        bool,
        typer.Option(
            "--lying",
            help="Attack the first site as a lying coordinator, which may ask any question.",
        ),
    ] = False,
    policy: Annotated[
        Path | None,
        typer.Option(help="With --lying: TOML file with one more policy to attack."),
    ] = None,
    csv: Annotated[
        bool, typer.Option("--csv", help="With --lying: print the table as CSV.")
    ] = False,
    json: Json = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Attack the messages that each solver would send, and report what they reveal.

    Each of FILES is a file or folder with one site's rows, or NAME=PATH. Use a small data set with at
    most 1000 features. Nothing leaves this machine.

    The command prints the errors of the attacker's estimates. Compare these errors with the error of a
    guess that uses no messages.

    With --lying, the coordinator does not follow the protocol. For each policy, the table shows which
    records and values of the first site the coordinator recovers. The policies are one that allows
    everything, the default of `fedpca join`, and the one given with --policy.
    """
    with exit_codes(json=json):
        if lying and secure:
            raise InputError(
                "--secure does not apply to --lying, which attacks a single site; omit one of them"
            )
        sources = sources_of(files, databases, reading)
        if lying:
            useless = list(given_options(method))
            if useless:
                raise InputError(
                    f"{', '.join(useless)}: not for --lying, which fits nothing; omit it"
                )
            _attack_as_liar(opened_sites(sources, reading), policy, csv, json, quiet)
            return
        if policy is not None or csv:
            raise InputError("--policy and --csv require --lying; add --lying, or omit them")
        _check_files(table, plot, force)
        parameters = method.parameters()
        parameters.pop("n_components", None)
        n_solvers = len(SOLVERS if solver == ["all"] else solver)
        with counting(quiet, "solvers", lambda: n_solvers) as on_done:
            measured = leakage.audit(
                opened_sites(sources, reading),
                method.components,
                solvers=None if solver == ["all"] else solver,
                refits=refits,
                colluding=colluding,
                simulate=simulate,
                secure=secure,
                on_solver=_attacking(on_done),
                **parameters,
            )
        show(measured.facts(by_site=by_site), json=json)
        _write_files(measured, table, plot)
        for path in (table, plot):
            if path is not None and not json:
                out.print(f"Wrote {path}")


def _check_files(table: Path | None, plot: Path | None, force: bool) -> None:
    """Refuse files that cannot be written, before the attacks begin."""
    for path in (table, plot):
        if path is not None:
            refuse_overwriting(path, force)
    if table is not None and table.suffix != ".csv":
        raise InputError(f"{table} must end in .csv, as in {table.stem}.csv")
    if plot is not None:
        check_plot_file(plot)
        pyplot()  # fail early if matplotlib is not installed


def _write_files(measured: Leakage, table: Path | None, plot: Path | None) -> None:
    if table is not None:
        with atomic.writing(table) as temporary:
            temporary.write_text(as_csv(Exposure._fields, measured.exposures) + "\n")
    if plot is not None:
        save_figure(LeakDisplay.from_leakage(measured).figure_, plot)


def _attacking(on_done: OnDone | None) -> Callable[[str], None] | None:
    """Return a function that shows which attack begins and how many are done, or None if quiet."""
    if on_done is None:
        return None
    number = itertools.count()
    return lambda name: on_done(next(number), f"attacking {name}")


def _attack_as_liar(
    sites: dict[str, Site], policy: Path | None, csv: bool, json: bool, quiet: bool
) -> None:
    """Attack sites as a lying coordinator would, and print what it recovers."""
    refuse_both(csv, json)
    own = None if policy is None else Policy.load(policy)
    with counting(quiet, "attacks", lambda: len(ATTACKS)) as on_done:
        found = attack_site(sites, policy=own, on_attack=_attacking(on_done))
    outcomes = find(found.facts(), "outcomes", Records)
    if csv and outcomes is not None:
        typer.echo(records_as_csv(outcomes))
    else:
        show(found.facts(), json=json)
