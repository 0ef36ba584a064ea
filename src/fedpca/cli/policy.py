"""Run `fedpca policy`: write, explain, or check a site's policy."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedpca.cli.console import exit_codes, refuse_overwriting, say
from fedpca.cli.methods import NO_METHOD, NO_NOISE, Method, Noise
from fedpca.cli.option_groups import LeftOut, with_groups
from fedpca.cli.options import Force, Json, read_policy, sites_of
from fedpca.cli.sites import FILES_ONLY, N_SITES, NO_SITE_ASKED, WhichSites
from fedpca.cli.terminal import show
from fedpca.coordinator.federation import Federation
from fedpca.engines.base import Engine
from fedpca.errors import FileError, InputError, MessageError, SiteError
from fedpca.facts import COUNT, EPSILON, YES, Fact, Section
from fedpca.privacy.gaussian import Privacy
from fedpca.protocol.message import Message
from fedpca.protocol.plan import RunPlan
from fedpca.site.gate import refusal_of
from fedpca.site.policy import JOINING, Policy
from fedpca.solvers.catalogue import load_added_solvers
from fedpca.storage import atomic
from fedpca.storage.regular import refuse_special

TRY_PANEL = "The plan for --check and --save-plan, as for fedpca fit"


@with_groups
def policy(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write a policy with comments to this file.")
    ] = Path("policy.toml"),
    explain: Annotated[
        Path | None, typer.Option(help="Explain what the policy in this file allows and prevents.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Check whether the policy in this file admits a plan.")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="Read the plan from this file, written with --save-plan.",
            rich_help_panel=TRY_PANEL,
        ),
    ] = None,
    save_plan: Annotated[
        Path | None,
        typer.Option(
            help="Write the plan to this file, for sites to check.", rich_help_panel=TRY_PANEL
        ),
    ] = None,
    method: Method = NO_METHOD,
    noise: Noise = NO_NOISE,
    asked: Annotated[WhichSites, LeftOut(NO_SITE_ASKED)] = FILES_ONLY,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write a site's policy with comments, explain one, or check one against a plan.

    Without options, the command writes policy.toml with the rules of a site that joins without
    --policy. Edit the file, and pass it to `fedpca join --policy`.

    With --check FILE, the other options describe a plan, like those of `fedpca fit`. For example, use
    `fedpca policy --check policy.toml --kind robust -k 5`. If the policy refuses the plan, the exit
    code is 1.
    """
    with exit_codes(json=json):
        if sum(given is not None for given in (explain, check, save_plan)) > 1:
            raise InputError(
                "--explain, --check, and --save-plan are mutually exclusive; use only one"
            )
        if explain is not None:
            show(read_policy(explain).facts(), json=json)
            return
        if check is None and save_plan is None:
            _write(output, JOINING.to_text(), force)
            say(f"Wrote {output}; edit it, and pass it to fedpca join --policy")
            return
        declared = plan_of(method, noise, asked) if plan is None else read_plan(plan)
        if save_plan is not None:
            _write(save_plan, declared.to_bytes().decode() + "\n", force)
            say(f"Wrote {save_plan}; sites can pass it to fedpca policy --check FILE --plan")
        if check is not None:
            admission = admission_of(read_policy(check), declared)
            show((admission,), json=json)
            if not admission["admitted"].value:
                sys.exit(1)


def plan_of(method: Method, noise: Noise, asked: WhichSites) -> RunPlan:
    """Return the plan that a fit with these options would declare to sites."""
    estimator = method.estimator(noise)
    given = sites_of(asked.sites or str(N_SITES))
    names = [f"site {i + 1}" for i in range(given)] if isinstance(given, int) else given or []
    if not names:
        raise InputError(
            f"--sites must be a number from 1, or the names of the sites; got {asked.sites}"
        )
    secure = asked.secure or (noise.promise() is not None and len(names) > 1)
    try:
        estimator.fit(Federation(_PlanCatcher(names), secure=secure))
    except _Declared as declared:
        return declared.plan
    raise InputError(f"--kind {method.kind} declares no plan to check; use a different kind")


def read_plan(path: Path) -> RunPlan:
    """Read a plan from a file that `fedpca policy --save-plan` wrote."""
    refuse_special(path)
    try:
        return RunPlan.from_bytes(path.read_bytes())
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None
    except MessageError as error:
        raise FileError(f"{path}: {error}") from None


class _Declared(Exception):
    """An exception that ends a program when it declares its plan, and carries the plan."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan


class _PlanCatcher(Engine):
    """An engine without sites that raises the first plan it is asked to send."""

    declares = True

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Message | bytes | SiteError]]:
        raise _Declared(RunPlan.from_bytes(request.arrays["plan"].tobytes()))


def admission_of(policy: Policy, plan: RunPlan) -> Section:
    """Return whether a policy admits a plan, the reason for a refusal, and what was asked."""
    load_added_solvers()
    refusal = refusal_of(policy, plan)
    spends = plan.is_private and not policy.is_open
    unspent = "the check does not know what the site has spent; fedpca budget says what is left"
    facts = (
        Fact("admitted", refusal is None, YES),
        Fact("refusal", refusal),
        Fact("program", plan.program),
        Fact("solver", plan.solver),
        Fact("sites", len(plan.sites), COUNT),
        Fact("secure", plan.is_secure, YES, "secure sums"),
        Fact(
            "epsilon",
            Privacy.of(plan).epsilon if plan.is_private else None,
            EPSILON,
            note=unspent if spends and refusal is None else "",
        ),
    )
    return Section("", facts)


def _write(path: Path, text: str, force: bool) -> None:
    refuse_overwriting(path, force)
    with atomic.writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
