"""Print what a fit would cost and reveal, and whether a model still fits the sites' rows."""

from __future__ import annotations

from rich.console import Console

from fedpca.report.tables import new_table, print_table
from fedpca.solvers.planning.solver_plan import Plan, SolverPlan
from fedpca.solvers.verification import Verdict

LEFT = ("solver", "components", "seen by site")
RIGHT = ("rounds", "bytes/site", "bytes", "seconds", "site memory", "server memory")
_UNITS = ("B", "kB", "MB", "GB", "TB")


def print_plan(console: Console, plan: Plan, *, has_policy: bool) -> None:
    """Print a table of the solvers, what a policy refuses, and which solver to use."""
    table = new_table(None, LEFT, RIGHT)
    if has_policy:
        table.add_column("policy")
    for each in plan.solvers:
        name = f"{each.solver} (auto)" if each.solver == plan.auto else each.solver
        about = "" if each.is_counted else "about "
        cells = [
            name,
            _guarantee(each),
            ", ".join(each.seen) or "nothing",
            f"{each.rounds:,}" + ("+" if each.stop_reason == "max_rounds" else ""),
            f"{about}{each.site_bytes:,}",
            f"{about}{each.bytes:,}",
            f"{each.seconds:,.2f}",
            in_units(each.site_memory),
            in_units(each.server_memory),
        ]
        table.add_row(*cells, *(["refused" if each.refusal else "admitted"] if has_policy else []))
    print_table(console, table)
    for each in plan.solvers:
        for word, text in (("refused", each.refusal), ("not possible", each.problem)):
            if text:
                console.print(f"{each.solver}: {word}: {text}", soft_wrap=True)
    if any(each.stop_reason == "max_rounds" for each in plan.solvers):
        console.print("+ would run out of rounds before it reaches the tolerance", soft_wrap=True)
    if plan.recommended is None:
        console.print(plan.reason, soft_wrap=True)
    else:
        console.print(f"Take {plan.recommended}: {plan.reason}.", soft_wrap=True)
    speed = plan.speed
    console.print(
        f"Assumed: {'; '.join(plan.assumes)}; {speed.latency:g} s a round, "
        f"{speed.bandwidth:.3g} bytes/s, {speed.flops:.2g} operations/s, rows read at "
        f"{speed.read_rate:.2g} bytes/s.",
        soft_wrap=True,
    )


def _guarantee(each: SolverPlan) -> str:
    """Return what a solver guarantees about its components."""
    if each.guarantee != "bounded":
        return each.guarantee
    if each.angle_bound >= 1:
        return "bounded"
    return "exact here" if not each.angle_bound else f"bounded, sine about {each.angle_bound:.0e}"


def in_units(n_bytes: int) -> str:
    """Return a number of bytes as text, in a unit from B to TB."""
    size, unit = float(n_bytes), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if size >= 10 or not unit else f"{size:.1f} {_UNITS[unit]}"


def print_verdict(console: Console, verdict: Verdict) -> None:
    """Print a table of a verdict's statistics, those that drifted first, and then the verdict."""
    table = new_table(None, ("statistic", "along"), ("then", "now", "change", "allowed"))
    table.add_column("")
    drifts = verdict.drifts
    for each in (*drifts, *(each for each in verdict.statistics if each not in drifts)):
        numbers = (f"{value:.6g}" for value in (each.then, each.now))
        sizes = (f"{value:.1e}" for value in (each.change, each.allowed))
        mark = "drifted" if each.has_drifted else ""
        table.add_row(each.name, each.where if each.has_drifted else "", *numbers, *sizes, mark)
    print_table(console, table)
    run = verdict.run
    for lost in run.lost:
        console.print(f"lost: {lost['reason']}", soft_wrap=True)
    if drifts and verdict.changed_sites is None:
        console.print("No site is named, because the sites were not asked or did not answer.")
    console.print(
        f"{len(run.sites)} sites, {run.rounds} rounds, {run.bytes_up:,} bytes from the sites, "
        f"{run.bytes_down:,} to them",
        soft_wrap=True,
    )
    console.print(verdict.in_words(), soft_wrap=True)
