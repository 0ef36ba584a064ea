"""Tell what a fit would cost and reveal with each solver, before any site is asked.

`plan` counts the messages of each solver (`fedpca.solvers.traffic`) for the number of rounds that the
solver takes on made-up rows (`fedpca.solvers.rehearsal`). Time follows from a simple model::

    seconds = rounds * latency + bytes of all sites / bandwidth        the network
            + the slowest site's operations / flops, or its reading    the sites, all at once
            + the coordinator's operations / flops                     the coordinator

No rows are needed, nothing is sent, and no privacy budget is spent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.privacy.gaussian import Privacy
from fedpca.protocol.message import MAX_BYTES
from fedpca.protocol.plan import NO_KEY, PRIVATE, SECURE, RunPlan
from fedpca.protocol.question import Question
from fedpca.rows.gaps import MISSING
from fedpca.site.guard import refusal_of
from fedpca.site.policy import Policy
from fedpca.solvers.catalogue import (
    SOLVERS,
    cheapest_exact,
    chosen_by_auto,
    find_solver,
    to_plain,
)
from fedpca.solvers.common_features import names_to_bytes
from fedpca.solvers.contract import Solver, check_choice, check_positive, check_whole
from fedpca.solvers.costs import Asked, Counted, Iterative, Rounds, Sizes
from fedpca.solvers.pca import fit_asked
from fedpca.solvers.private.program import private_asked, private_solver
from fedpca.solvers.private.utility import expected_share
from fedpca.solvers.rehearsal import rehearse
from fedpca.solvers.traffic import Crossed, Party, traffic
from fedpca.solvers.workload import BANDWIDTH, LATENCY_S, Speed, Work, speed_of

TYPICAL_LENGTH = 0.8  # of a row about the mean, as a share of the row bound, if nothing is known
TELLS_APART = 1.3  # smaller ratios of bytes do not count, since rounds are only estimated

# questions that a solver can do without, or that reveal nothing about rows
UNSEEN = ("column_names", "explained_energy", "explained_in_summary")


@dataclass(frozen=True)
class SolverPlan:
    """What a fit would cost and reveal with one solver.

    ``rounds`` counts all questions, as `run_.rounds` does, and ``solver_rounds`` counts those whose
    number depends on the variances. ``stop_reason`` is why the rehearsal stopped, or "" without one.
    Bytes are those of all messages to and from all sites, and ``site_bytes`` those to and from the site
    with the most. If ``is_counted`` is true and the run takes as many rounds, its record will have the
    same numbers. ``site_memory`` and ``server_memory`` are estimates in bytes, without the program.

    ``angle_bound`` is the bound that a solver that is not exact would state if the sites were alike.
    ``discloses`` tells what happens to the answers to each question: they are "seen", "summed", or
    "masked". ``refusal`` is why a site would not take part, and ``problem`` is why the solver cannot
    run.
    """

    solver: str
    guarantee: str
    rounds: int
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
    def seen(self) -> tuple[str, ...]:
        """Return the questions whose answers the solver needs site by site."""
        return tuple(
            name for name, how in self.discloses.items() if how == "seen" and name not in UNSEEN
        )

    @property
    def is_possible(self) -> bool:
        """Return whether the solver can run and finish, with no refusal by a site."""
        return not self.refusal and not self.problem and self.stop_reason != "max_rounds"


@dataclass(frozen=True)
class Plan:
    """What a fit would cost and reveal with each solver, and which one to use.

    ``auto`` is the solver that ``solver="auto"`` would choose. ``recommended`` is the solver to use, or
    None if none is possible; ``reason`` is why. ``share`` is the share of the exact components'
    variance that a differentially private fit is expected to keep. ``assumes`` lists what was assumed
    because it was not given.
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

    def to_plain(self) -> dict[str, Any]:
        """Return the plan as values that JSON can hold."""
        return asdict(self)


def plan(
    rows: int | Mapping[str, int],
    features: int | Sequence[str],
    n_components: int,
    *,
    sites: int | Sequence[str] = 3,
    solvers: Iterable[str | Solver] | None = None,
    center: bool = True,
    scale: bool = False,
    missing: str = "error",
    weighted: bool = False,
    in_order: bool = True,
    tol: float = 1e-10,
    max_rounds: int = 500,
    secure: bool | None = None,
    privacy: Privacy | None = None,
    policy: Policy | str | os.PathLike[str] | None = None,
    variances: Sequence[float] | Array | None = None,
    latency: float = LATENCY_S,
    bandwidth: float = BANDWIDTH,
    flops: float | None = None,
    read_rate: float | None = None,
) -> Plan:
    """Return what a fit of `FederatedPCA` would cost and reveal with each solver.

    Nothing is sent, and no rows are read.

    Parameters
    ----------
    rows : int or dict
        About how many rows all sites have together, or the number of rows of each site by its name.
    features : int or list of str
        The number of features, or their names, which sites send in the first round.
    n_components : int
        The number of components.
    sites : int or list of str
        The number of sites, or their names, unless ``rows`` names them.
    solvers : iterable of str or Solver, optional
        The solvers to plan for; by default, all in the catalogue.
    center, scale, missing, tol, max_rounds
        As for `FederatedPCA`.
    weighted : bool
        Whether the rows of any site have weights.
    in_order : bool
        Whether all sites have their columns in the same order. Otherwise, sites are sent the names.
    secure : bool, optional
        Whether sums are secure; by default, only with ``privacy`` and several sites.
    privacy : Privacy, optional
        The promise of a differentially private fit.
    policy : Policy or path, optional
        The policy of a site, or its file. The plan for each solver is checked against this policy, as
        the site would do.
    variances : array of shape (n_features,), optional
        The variances along the components: a guess, or those of public rows. They must not come from
        rows that nobody may see. By default, they fall as 1, 1/2, 1/3, and so on.
    latency, bandwidth, flops, read_rate : float, optional
        The speeds of the network and the machines, as in `Speed`. By default, `latency` is 0.05 s,
        ``bandwidth`` is 12.5 MB/s, and the others are measured on this machine, in memory.

    Examples
    --------
    >>> import fedpca
    >>> some = ["covariance", "lanczos", "merge"]
    >>> planned = fedpca.plan(9000, 30, 3, sites=["north", "south", "west"], solvers=some)
    >>> planned.recommended
    'covariance'
    >>> planned["covariance"].rounds, planned["lanczos"].rounds
    (4, 14)
    >>> planned["covariance"].bytes < planned["lanczos"].bytes
    True
    >>> planned["merge"].seen
    ('summarize_rows',)
    """
    parties = _parties(rows, sites)
    names = None if isinstance(features, Integral) else list(features)  # type: ignore[arg-type]
    d = int(features) if names is None else len(names)  # type: ignore[arg-type]
    n = sum(party.rows for party in parties)
    check_whole("features", d, 1)
    check_choice("missing", missing, MISSING)
    check_whole("n_components", n_components, 1)
    check_whole("max_rounds", max_rounds, 1)
    check_positive("tol", tol)
    if n_components > min(n, d):
        raise InputError(
            f"n_components={n_components} exceeds the {min(n, d)} components that {n:,} rows of {d:,} "
            f"features have; use at most {min(n, d)}"
        )
    known = None if variances is None else _checked(variances, d)
    is_secure = privacy is not None and len(parties) > 1 if secure is None else secure
    if is_secure and len(parties) < 2:
        raise InputError("secure=True needs at least two sites")
    sizes = Sizes(
        n,
        0,
        d,
        int(n_components),
        center,
        scale,
        missing,
        weighted,
        name_bytes=0 if names is None else names_to_bytes(names).nbytes,
        in_order=in_order,
    )
    given = Policy.load(policy) if isinstance(policy, str | os.PathLike) else policy
    speed = speed_of(latency, bandwidth, flops, read_rate)
    fit = _Fit(parties, sizes, tol, max_rounds, is_secure, privacy, given, speed, known)
    auto = cheapest_exact(n, d, sizes.k).name if privacy is None else private_solver(d)
    planned = tuple(fit.planned(solver) for solver in _solvers(solvers, is_private=bool(privacy)))
    recommended, reason = _recommended(planned, auto, is_known=known is not None)
    share = None
    if privacy is not None:
        guess = fit.variances if known is not None else _scaled(fit.variances, privacy)
        settings = (privacy, guess, n, sizes.k, len(parties))
        share = expected_share(*settings, secure=is_secure, center=center)
    assumes = [] if known is not None else ["variances fall as 1, 1/2, 1/3, and so on"]
    if not isinstance(rows, Mapping):
        assumes.append("all sites have about the same number of rows")
    if names is None:
        assumes.append("columns have no names")
    return Plan(planned, auto, recommended, reason, speed, tuple(assumes), share)


@dataclass(frozen=True)
class _Fit:
    """The fit that is planned."""

    parties: Sequence[Party]
    sizes: Sizes
    tol: float
    max_rounds: int
    secure: bool
    privacy: Privacy | None
    policy: Policy | None
    speed: Speed
    known: Array | None

    @property
    def variances(self) -> Array:
        """Return variances along all components, at most as many of them positive as rows allow."""
        if self.known is not None:
            return self.known
        d, most = self.sizes.d, max(self.sizes.n - self.sizes.center, 1)
        falling = 1.0 / np.arange(1, d + 1)
        falling[most:] = 0.0
        return falling

    def planned(self, solver: Solver) -> SolverPlan:
        """Return what the fit would cost and reveal with a solver."""
        sizes, rounds, reason = self.sizes, self._rounds(solver), ""
        if isinstance(rounds, tuple):
            rounds, reason = rounds
        crossed = list(
            traffic(
                partial(self._asked, solver, rounds),
                self.parties,
                sizes.d,
                secure=self.secure,
                answers=self._is_answered,
            )
        )
        down = len(self.parties) * sum(each.down for each in crossed)
        up = np.sum([each.up for each in crossed], axis=0)
        is_counted = isinstance(solver, Counted) and not self.secure
        by_site = up + down // len(self.parties)
        if not isinstance(solver, Counted):  # it only estimates its bytes
            more = solver.bytes_per_site(sizes.n, sizes.d, sizes.k)
            by_site = by_site + more
            down, up = down + len(self.parties) * more // 2, up + more // 2
        rule = getattr(solver, "site_components", None)
        largest = max(self.parties, key=lambda party: party.rows)
        work = Work(crossed, replace(sizes, here=largest.rows), len(self.parties))
        return SolverPlan(
            solver=solver.name,
            guarantee="private" if self.privacy else solver.guarantee,
            rounds=sum(each.times for each in crossed),
            solver_rounds=sum(rounds.values()),
            stop_reason=reason,
            bytes_down=down,
            bytes_up=int(up.sum()),
            site_bytes=int(by_site.max()),
            is_counted=is_counted and not isinstance(rule, str | float),
            seconds=work.seconds(self.speed, down + int(up.sum())),
            site_memory=work.site_memory(),
            server_memory=work.server_memory(),
            angle_bound=self._angle_bound(solver, work.n_directions),
            discloses=self._disclosed(crossed),
            refusal=self._refusal(solver),
            problem=self._problem(solver, crossed),
        )

    def _rounds(self, solver: Solver) -> Rounds | tuple[Rounds, str]:
        """Return how many times a solver multiplies blocks and, if it iterates, why it stopped."""
        if self.privacy is not None or not isinstance(solver, Iterative):
            return {}
        found = rehearse(
            solver,
            self.variances,
            self.sizes.k,
            [party.rows for party in self.parties],
            tol=self.tol,
            max_rounds=self.max_rounds,
        )
        return found.rounds, found.stop_reason

    def _asked(self, solver: Solver, rounds: Rounds, here: int) -> list[Asked]:
        """Return all questions of the fit to a site with this many rows."""
        sizes = replace(self.sizes, here=here)
        if self.privacy is not None:
            return private_asked(solver.name, sizes, self.privacy)
        asked = fit_asked(solver, sizes, rounds)
        # with secure sums, no site's share is measured
        return asked[:-1] if self.secure else asked

    def _is_answered(self, question: Question) -> bool:
        """Return whether a site with the policy answers; the program goes on without other answers."""
        if self.policy is None or question.verb == "sum" or not question.reads_rows:
            return True
        return self.policy.gather

    def _disclosed(self, crossed: Sequence[Crossed]) -> dict[str, str]:
        kept = "masked" if self.secure else "summed"
        return {
            each.question.name: "seen" if each.question.verb == "gather" else kept
            for each in crossed
            if self._is_answered(each.question)
        }

    def _refusal(self, solver: Solver) -> str:
        """Return why a site with the policy would not take part, or an empty string."""
        if self.policy is None:
            return ""
        settings: dict[str, Any] = {SECURE: True} if self.secure else {}
        if self.privacy is not None:
            settings[PRIVATE] = self.privacy.to_plain()
        parameters = {
            "n_components": self.sizes.k,
            "center": self.sizes.center,
            "scale": self.sizes.scale,
            "tol": self.tol,
            "max_rounds": self.max_rounds,
            "missing": self.sizes.missing,
            "solver": to_plain(solver),
        }
        sites = {party.name: NO_KEY for party in self.parties}
        run = RunPlan("plan", "FederatedPCA", parameters, sites, privacy=settings)
        return refusal_of(self.policy, run) or ""

    def _problem(self, solver: Solver, crossed: Sequence[Crossed]) -> str:
        """Return why the solver cannot run, or an empty string."""
        if self.secure and solver.seen and self.privacy is None:
            return "it needs each site's answers, which secure sums hide"
        for each in crossed:
            largest = max(each.down, *each.up) // each.times
            if largest > MAX_BYTES:
                return (
                    f"a message of {each.question.name!r} would take {largest:,} bytes, more than the "
                    f"limit of {MAX_BYTES:,}"
                )
        return ""

    def _angle_bound(self, solver: Solver, n_directions: int) -> float:
        """Return the bound that a solver would state if each site had the same variances."""
        k, r = self.sizes.k, n_directions
        if self.privacy is not None or solver.guarantee == "exact" or r >= self.sizes.d:
            return 0.0
        values = np.sort(self.variances)[::-1]
        left_out = values[r] if r else values[k]
        gap = values[k - 1] - values[k] - left_out
        return float(min(1.0, left_out / gap)) if gap > 0 else float(left_out > 0)


def _recommended(
    planned: Sequence[SolverPlan], auto: str, *, is_known: bool
) -> tuple[str | None, str]:
    """Return the solver to take and why."""
    possible = [each for each in planned if each.is_possible]
    if not possible:
        because = "; ".join(
            dict.fromkeys(
                f"{each.solver}: {each.refusal or each.problem or 'it would run out of rounds'}"
                for each in planned
            )
        )
        return None, f"no solver is possible: {because}"
    kept = [each for each in possible if each.guarantee != "bounded"]
    summed = [each for each in kept if not each.seen]
    best = min(summed or kept or possible, key=lambda each: each.bytes)
    usual = next((each for each in summed if each.solver == auto), None)
    names = {solver.name for solver in chosen_by_auto()}
    is_close = usual is not None and usual.bytes < TELLS_APART * best.bytes
    if usual is not None and (is_close or not is_known or best.solver not in names):
        best = usual
    what = {"exact": "it is exact", "private": "it keeps the promise"}.get(
        best.guarantee, "no exact one is possible, and it states how far off it is"
    )
    shows = f"shows {', '.join(best.seen)} of each site" if best.seen else "needs only sums"
    reason = (
        f"{what}, {shows}, and moves {best.site_bytes:,} bytes to and from a site in {best.rounds} "
        "rounds"
    )
    if best.solver != auto:
        instead = next((each for each in planned if each.solver == auto), None)
        if instead is not None and not instead.is_possible:
            said = instead.refusal or instead.problem or "would run out of rounds"
            reason += f"; {auto}, which 'auto' takes, is not possible: {said}"
        elif instead is not None:
            reason += f"; 'auto', which does not know the variances, would take {auto}"
    return best.solver, reason


def _solvers(given: Iterable[str | Solver] | None, *, is_private: bool) -> list[Solver]:
    if given is None:
        mechanisms = ("covariance", "power")
        return [s for s in SOLVERS.values() if not is_private or s.name in mechanisms]
    items = [given] if isinstance(given, str | Solver) else list(given)
    found = [solver for solver in map(find_solver, items) if solver is not None]
    if len(found) < len(items) or not found:
        raise InputError(
            f"solvers must name one or more of {', '.join(SOLVERS)}; omit 'auto', which only chooses "
            "among them"
        )
    return found


def _parties(rows: int | Mapping[str, int], sites: int | Sequence[str]) -> list[Party]:
    """Return the sites with their row counts; spread rows evenly if only their total is known."""
    if isinstance(rows, Mapping):
        for name, n in rows.items():
            check_whole(f"rows[{name!r}]", n, 0)
        parties = [Party(str(name), int(n)) for name, n in rows.items()]
    else:
        if isinstance(sites, str):
            raise InputError(f"sites={sites!r} must be a number or a list of names")
        if isinstance(sites, Integral):
            check_whole("sites", sites, 1)
            names = [f"site-{i}" for i in range(1, int(sites) + 1)]
        else:
            names = [str(name) for name in sites]  # type: ignore[union-attr]
        if not names or len(set(names)) < len(names):
            raise InputError(f"sites={sites!r} must name at least one site, and no site twice")
        check_whole("rows", rows, 2)
        each, more = divmod(int(rows), len(names))
        parties = [Party(name, each + (i < more)) for i, name in enumerate(names)]
    if sum(party.rows for party in parties) < 2:
        raise InputError("all sites together must have at least 2 rows")
    return parties


def _checked(variances: Sequence[float] | Array, d: int) -> Array:
    """Return variances along all components; those that are not given are zero."""
    given = np.asarray(variances, dtype=np.float64)
    if given.ndim != 1 or not 1 <= given.size <= d or not np.isfinite(given).all():
        raise InputError(f"variances must be a list of 1 to {d} finite numbers")
    if given.min() < 0 or not given.any():
        raise InputError("variances must be at least 0, and one of them must be positive")
    return np.pad(np.sort(given)[::-1], (0, d - given.size))


def _scaled(falling: Array, privacy: Privacy) -> Array:
    """Scale variances so that typical rows are a little shorter than the row bound."""
    return np.asarray(falling * (TYPICAL_LENGTH * privacy.row_bound) ** 2 / falling.sum())
