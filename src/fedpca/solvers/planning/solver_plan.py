"""Hold what a fit would cost and reveal with each solver, and say which one to use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

from fedpca.facts import (
    BYTES,
    COUNT,
    DATA,
    LONG_TEXT,
    NUMBER,
    SECONDS,
    SHARE,
    SIZE,
    TEXTS,
    Column,
    Fact,
    Records,
    Section,
    Sections,
    ValueKind,
    choice,
)
from fedpca.solvers.planning.machines import Speed

TELLS_APART = 1.3  # smaller ratios of bytes do not count, since rounds are only estimated

# questions that a solver can do without, or that reveal nothing about rows
UNSEEN = ("column_names", "explained_energy", "explained_in_summary", "site_shares", "sparse_share")

PROMISES = {  # what each guarantee means, as the reason to use a solver
    "exact": "it is exact",
    "private": "it keeps the promise",
    "bounded": "no exact one is possible, and it states how far off it is",
    "stationary": "no step improves where it ends",
    "exact without noise": "it is exact if nothing but outliers differs from the components",
}
WEAK = ("bounded", "no bound")  # guarantees of solvers that are taken only if no other is possible


@dataclass(frozen=True)
class SolverPlan:
    """What a fit would cost and reveal with one solver.

    ``rounds`` counts all questions, as `run_.rounds` does, and ``solver_rounds`` counts those whose
    number depends on the rows. If rehearsals differ, ``rounds`` is their median, and most fits take
    between ``fewest_rounds`` and ``most_rounds``; otherwise, the three are equal. ``stop_reason`` is
    why the rehearsal stopped. Bytes are those of all messages to and from all sites, and
    ``site_bytes`` those to and from the site with the most traffic. If ``is_counted`` is true and
    the run takes these rounds, its record will have the same numbers. ``site_memory`` and
    ``server_memory`` are estimates in bytes, without the program.

    ``guarantee`` is "exact", "bounded", or "private". For personalized fits, it is "stationary" or
    "no bound", and for robust fits, "exact without noise" or "no bound".
    ``angle_bound`` is the bound that an inexact solver would state if the sites were alike.
    ``discloses`` tells what happens to the answers to each question: they are "seen", "summed", or
    "masked". ``refusal`` is why a site would not take part, and ``problem`` is why the solver cannot
    run.
    """

    solver: str
    guarantee: str
    rounds: int
    fewest_rounds: int
    most_rounds: int
    solver_rounds: int
    stop_reason: str
    bytes_down: int
    bytes_up: int
    site_bytes: int
    is_counted: bool
    seconds: float
    site_memory: int
    server_memory: int
    angle_bound: float
    discloses: dict[str, str]
    refusal: str = ""
    problem: str = ""

    @property
    def bytes(self) -> int:
        """Return the bytes to and from all sites."""
        return self.bytes_down + self.bytes_up

    @property
    def range(self) -> tuple[int, int] | None:
        """Return the fewest and the most rounds if rehearsals differed."""
        if self.fewest_rounds == self.most_rounds:
            return None
        return self.fewest_rounds, self.most_rounds

    @property
    def promise(self) -> str:
        """Return in words what the solver guarantees about these components."""
        if self.guarantee != "bounded" or self.angle_bound >= 1:
            return self.guarantee
        if not self.angle_bound:
            return "exact here"
        return f"bounded, sine about {self.angle_bound:.0e}"

    @property
    def seen(self) -> tuple[str, ...]:
        """Return the questions whose answers the solver needs site by site."""
        return tuple(
            name for name, how in self.discloses.items() if how == "seen" and name not in UNSEEN
        )

    @property
    def is_possible(self) -> bool:
        """Return whether the solver can run and finish, and no site refuses."""
        return not self.refusal and not self.problem and self.stop_reason != "max_rounds"


RANGE = ValueKind(lambda ends: f"{ends[0]:,} to {ends[1]:,}")
PLANNED = (
    Column("solver"),
    Column("is_auto", choice("auto", ""), ""),
    Column("guarantee", DATA),
    Column("angle_bound", DATA),
    Column("promise", label="components"),
    Column("seen", ValueKind(lambda seen: ", ".join(seen) or "nothing", False), "seen by site"),
    Column("rounds", COUNT),
    Column("range", RANGE, "from"),
    *(Column(key, DATA) for key in ("fewest_rounds", "most_rounds", "solver_rounds")),
    Column("stop_reason", label="stops"),
    Column("is_counted", choice("", "about"), ""),
    Column("site_bytes", BYTES, "bytes/site"),
    Column("bytes", BYTES),
    Column("bytes_down", DATA),
    Column("bytes_up", DATA),
    Column("seconds", SECONDS),
    Column("site_memory", SIZE),
    Column("server_memory", SIZE),
    Column("discloses", DATA),
    Column("refusal", LONG_TEXT, "refused"),
    Column("problem", LONG_TEXT, "not possible"),
)


@dataclass(frozen=True)
class Plan:
    """What a fit would cost and reveal with each solver, and which one to use.

    ``auto`` is the solver that the estimator uses if none is named. ``recommended`` is the solver
    to use, or None if none is possible; ``reason`` says why. ``share`` is the share of the exact
    components' variance that a differentially private fit is expected to keep. ``assumes`` lists
    what was assumed because it was not given.
    """

    solvers: tuple[SolverPlan, ...]
    auto: str
    recommended: str | None
    reason: str
    speed: Speed
    assumes: tuple[str, ...]
    share: float | None = None

    def __getitem__(self, solver: str) -> SolverPlan:
        for each in self.solvers:
            if each.solver == solver:
                return each
        names = ", ".join(each.solver for each in self.solvers)
        raise KeyError(f"{solver!r} was not planned; the plan has {names}")

    def facts(self) -> Sections:
        """Return what was planned for each solver, and which one to use, as sections of facts."""
        rows = [
            (
                each.solver,
                each.solver == self.auto,
                *(getattr(each, column.key) for column in PLANNED[2:]),
            )
            for each in self.solvers
        ]
        facts = (
            Fact("auto", self.auto, label="taken by default"),
            Fact("recommended", self.recommended),
            Fact("reason", self.reason),
            Fact(
                "share", self.share, SHARE, "share of the exact components' variance that is kept"
            ),
            Fact("assumes", self.assumes, TEXTS, "assumed"),
            Fact("speed", asdict(self.speed), NUMBER, "assumed speeds"),
        )
        return Records("solvers", PLANNED, rows), Section("", facts)


def recommend(
    planned: Sequence[SolverPlan], auto: str, rivals: Collection[str] = ()
) -> tuple[str | None, str]:
    """Return the solver to use, and why.

    The solver is ``auto``, unless ``auto`` is not possible or one of the ``rivals`` moves far fewer
    bytes.
    """
    possible = [each for each in planned if each.is_possible]
    if not possible:
        because = "; ".join(
            dict.fromkeys(
                f"{each.solver}: {each.refusal or each.problem or 'it would run out of rounds'}"
                for each in planned
            )
        )
        return None, f"no solver is possible: {because}"
    kept = [each for each in possible if each.guarantee not in WEAK]
    summed = [each for each in kept if not each.seen]
    best = min(summed or kept or possible, key=lambda each: each.bytes)
    usual = next((each for each in summed or kept if each.solver == auto), None)
    is_close = usual is not None and usual.bytes < TELLS_APART * best.bytes
    if usual is not None and (is_close or best.solver not in rivals):
        best = usual
    what = PROMISES.get(best.guarantee, "no other is possible")
    shows = f"shows {', '.join(best.seen)} of each site" if best.seen else "needs only sums"
    reason = (
        f"{what}, {shows}, and moves {best.site_bytes:,} bytes to and from a site in {best.rounds} "
        "rounds"
    )
    if best.solver != auto:
        instead = next((each for each in planned if each.solver == auto), None)
        if instead is not None and not instead.is_possible:
            said = instead.refusal or instead.problem or "would run out of rounds"
            reason += f"; {auto}, which is taken by default, is not possible: {said}"
        elif instead is not None:
            reason += f"; 'auto', which does not know the variances, would take {auto}"
    return best.solver, reason
