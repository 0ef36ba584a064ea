"""Run `fedpca join`: participate in a federation as a site until stopped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpca.cli.console import show_warnings_of_package, teller, until_stopped
from fedpca.cli.option_groups import with_groups
from fedpca.cli.options import (
    AllowMissing,
    Database,
    Insecure,
    Quiet,
    read_policy,
    source_of,
)
from fedpca.engines.default_locations import home, with_port
from fedpca.errors import InputError
from fedpca.rows.check import examine, few_findings, findings_at, refuse_unfit
from fedpca.rows.in_memory import Rows
from fedpca.rows.reading import AS_STORED, Reading
from fedpca.site.answer_log import AnswerLog, check_ledger, size
from fedpca.site.guard import Keys
from fedpca.site.policy import JOINING, Policy
from fedpca.site.site import Site
from fedpca.site.store import LEDGER
from fedpca.solvers.catalogue import load_added_solvers

ANSWER_TIMEOUT_S = 3600.0


@with_groups
def join(
    address: Annotated[
        str, typer.Argument(metavar="HOST", help="Server address: HOST or HOST:PORT.")
    ],
    key: Annotated[Path, typer.Option(help="The site's private key file, NAME.key.")],
    data: Annotated[
        list[str],
        typer.Option(help="File or folder with this site's rows; may be followed by more files."),
    ] = [],  # noqa: B006
    # a shell expands --data *.parquet into one option value and further arguments
    more: Annotated[list[str] | None, typer.Argument(metavar="[DATA]...", hidden=True)] = None,
    database: Database = None,
    name: Annotated[
        str | None,
        typer.Option(help="The site's name; by default, the name of the key file without .key."),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            help="The coordinator's ca.pem; by default, the system's certificate authorities."
        ),
    ] = None,
    coordinator: Annotated[
        Path | None,
        typer.Option(
            help="The coordinator's coordinator.pub; the site then accepts only plans signed with that "
            "key."
        ),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="TOML file with the site's policy; see fedpca policy.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder in which the site keeps its ledger and other files.")
    ] = None,
    reading: Reading = AS_STORED,
    allow_missing: AllowMissing = False,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds after which the site gives up on a question.", min=0.001),
    ] = ANSWER_TIMEOUT_S,
    insecure: Insecure = False,
    quiet: Quiet = False,
) -> None:
    """Participate in a federation with the rows on this machine until stopped.

    HOST is the address of the coordinator's server. The rows stay on this machine. The command prints
    each question and what is sent in reply, and records both in the site's ledger.

    Without --policy, the site takes part only in plain PCA that needs nothing but sums over sites. It
    refuses questions that would show the coordinator this site's individual answers about its rows.
    `fedpca policy` writes a policy file in which you can allow more.

    Rows in a database are read when a run begins. Use the environment variable FEDPCA_DATABASE for an
    address that contains a password.

    The command checks the rows first, as `fedpca check` does, and does not start if a fit would fail.
    If a file changes so that a fit would fail, the site stays out of runs until the file is corrected.
    """
    with until_stopped():
        from fedpca.engines import credentials
        from fedpca.engines.flower.connection import Link
        from fedpca.engines.flower.site_client import join as answer_questions

        if insecure and ca is not None:
            raise InputError("--insecure and --ca are mutually exclusive; use only one")
        site_name = name or key.stem
        store = folder or home() / "sites" / site_name
        link = Link(
            with_port(address),
            None if ca is None else credentials.read_authority(ca),
            plain=insecure,
        )
        private_key = credentials.read_site_key(key)
        tell = teller(site_name, quiet)
        show_warnings_of_package()
        keys = _keys(private_key, coordinator)
        rules = JOINING if policy is None else read_policy(policy)
        _refuse_unsafe(rules, has_coordinator=coordinator is not None)

        def check(rows: Rows) -> None:
            findings = findings_at(site_name, examine(rows), allow_missing=allow_missing)
            for finding in findings:
                if not finding.stops_fit:
                    tell(finding.text)
            refuse_unfit(findings)

        site = Site(
            source_of([*data, *(more or [])], database, reading),
            name=site_name,
            policy=rules,
            store=store,
            check=check,
            reading=reading,
            keys=keys,
            tell=tell,
        )
        store.mkdir(parents=True, exist_ok=True, mode=0o700)
        ledger = LEDGER.path(store, site_name)
        check_ledger(ledger)
        _greet(site, ledger, tell, coordinator=keys.coordinator, is_default=policy is None)
        log = AnswerLog(site, ledger, tell, timeout)
        answer_questions(link, private_key, log.reply, tell)


def _keys(private_key: Any, coordinator: Path | None) -> Keys:
    """Return the site's keys, with the only coordinator whose plans it accepts, if there is one."""
    from fedpca.engines import credentials

    pinned = None
    if coordinator is not None:
        pinned = credentials.fingerprint(credentials.read_coordinator_public(coordinator))
    return Keys(
        credentials.fingerprint(private_key.public_key()),
        credentials.signer_of,
        pinned,
        identity=credentials.to_der(private_key.public_key()),
        sign=partial(credentials.sign, private_key),
        verify=credentials.verify_der,
    )


def _greet(
    site: Site,
    ledger: Path,
    tell: Callable[[str], None],
    *,
    coordinator: str | None,
    is_default: bool,
) -> None:
    """Say what the site has, what it accepts, and where it writes its answers down."""
    tell(size(site.rows))
    for added, solver in load_added_solvers().items():
        if isinstance(solver, InputError):
            tell(f"ignoring an installed solver: {solver}")
        else:
            tell(f"the solver {added!r} is installed; its questions are subject to the policy")
    site.look_at_rows()
    for finding in few_findings(site.name, site.rows, site.policy.min_count):
        tell(finding.text)
    whose = "the default policy" if is_default else "policy"
    tell(f"{whose}: {site.policy.in_words()}; answers are recorded in {ledger}")
    budget = site.privacy_budget_in_words()
    if budget:
        tell(f"the privacy budget: {budget}")
    if coordinator is None:
        tell(
            "anyone with the server's secret can declare runs here; to accept only runs signed "
            "with the coordinator's key, use --coordinator coordinator.pub"
        )
    else:
        tell(f"only plans signed with the key {coordinator} are considered")


def _refuse_unsafe(policy: Policy, *, has_coordinator: bool) -> None:
    """Refuse rules that a coordinator on a different machine could evade."""
    policy.refuse_unknown_sites()
    if has_coordinator and policy.is_open:
        raise InputError(
            "--coordinator has no effect with a policy that allows 'any', because such a policy admits "
            "questions without a signed plan; name the programs to allow, or omit --coordinator"
        )
