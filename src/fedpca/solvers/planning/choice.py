"""Say which solvers a fit can use, which one it uses by default, and on what each is rehearsed.

Each estimator's program has a function here that checks the parameters and returns the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.privacy.gaussian import Privacy
from fedpca.rows.gaps import MISSING
from fedpca.solvers.catalogue import cheapest_exact, find_solver, to_plain
from fedpca.solvers.common_features import names_to_bytes
from fedpca.solvers.contract import FAMILIES, check_choice, check_positive, check_whole
from fedpca.solvers.pca import principal_components
from fedpca.solvers.personalized.local_ranks import LocalRanks
from fedpca.solvers.personalized.program import shared_and_local
from fedpca.solvers.planning.made_up import (
    Cast,
    Party,
    Rows,
    alike,
    as_sites,
    evenly_thinned,
    names_like,
    sharing,
    with_outliers,
)
from fedpca.solvers.planning.rehearsal import Rehearsal, Stage, rehearse, usual
from fedpca.solvers.private.program import SOLVERS as PRIVATE_SOLVERS
from fedpca.solvers.private.program import private_components, private_solver
from fedpca.solvers.private.utility import expected_share
from fedpca.solvers.robust.program import low_rank_and_sparse

TYPICAL_LENGTH = 0.8  # assumed length of a row about the mean, as a share of the row bound
SITES_ARE_ALIKE = "sites are alike"
ASSUMED = "variances fall as 1, 1/2, 1/3, and so on"
MAX_SIDE = 240  # features of made-up rows, or PER_DIRECTION for each direction if that is more
PER_DIRECTION = 4
# features for solvers that take few rounds: those that search in the space of all blocks need many, or
# they would find everything too early
MAX_WIDE_SIDE, PER_DIRECTION_OF_WIDE = 600, 20
FEW_ROUNDS = 40
MAX_SITES = 5
N_STARTS = 5  # rehearsals of a `FederatedPCA`, which take little time
MAX_K, MAX_K_OF_ONE_ROUND = 40, 200  # components in a rehearsal


@dataclass(frozen=True)
class PlannedFit:
    """The fit to plan, after the checks that all programs have in common."""

    program: str
    parameters: Mapping[str, Any]
    parties: Sequence[Party]
    names: Sequence[str] | None
    d: int
    weighted: bool
    in_order: bool
    given: Array | None  # the variances, if the caller passed any
    secure: bool

    @property
    def n(self) -> int:
        """Return the number of rows at all sites."""
        return sum(party.rows for party in self.parties)

    def check_components(self, k: int) -> None:
        """Refuse more components than the rows have."""
        most = min(self.n, self.d)
        if k > most:
            name = "n_components"
            raise InputError(
                f"{name}={k} exceeds the {most} components that {self.n:,} rows of {self.d:,} features "
                f"have; use at most {most}"
            )

    def variances(self, *, center: bool) -> Array:
        """Return the variances along all components; no more are positive than the rows allow."""
        if self.given is not None:
            return self.given
        falling = 1.0 / np.arange(1, self.d + 1)
        falling[max(self.n - center, 1) :] = 0.0
        return falling

    def stage(self, made_up: Rows, cast: Cast, program: Callable[..., Any], **more: Any) -> Stage:
        """Return the stage on which a program is rehearsed with made-up rows."""
        names, p = self.names, cast.side
        if names is not None:
            names = names_like(names, names_to_bytes(names).nbytes, p)
        sites = as_sites(made_up, names, in_order=self.in_order, weighted=self.weighted)
        rows = {name: len(X) for name, X in made_up.items()}
        n_sites = len(self.parties)
        return Stage(program, sites, cast, rows, n_sites, self.d, **more)

    def expected_share(self) -> float | None:
        """Return the share of the variance that a private fit is expected to keep, or None."""
        privacy = self.parameters.get("privacy")
        if privacy is None:
            return None
        center = bool(self.parameters["center"])
        guess = self.variances(center=center)
        if self.given is None:
            guess = _scaled(guess, privacy)
        settings = (privacy, guess, self.n, self.parameters["n_components"], len(self.parties))
        return expected_share(*settings, secure=self.secure, center=center)


@dataclass(frozen=True)
class Choice:
    """A program's solvers, its default solver, and how a fit with each is rehearsed.

    ``rehearse`` takes the solver, and whether sums are secure. ``parameters`` are those in the plan
    that sites would receive. ``variances`` are along all components, in descending order if the sites
    are alike. ``problem_of`` returns why a solver cannot be used, or an empty string.
    """

    solvers: Sequence[Any]
    auto: str
    rehearse: Callable[[Any, bool], Rehearsal]
    k: int
    parties: Sequence[Party]
    parameters: Mapping[str, Any]
    variances: Array
    needs_each: Callable[[Any], bool]
    problem_of: Callable[[Any], str] = lambda _: ""
    assumes: tuple[str, ...] = ()


def _choose_pca(asked: PlannedFit, solvers: Iterable[Any] | None) -> Choice:
    given = dict(asked.parameters)
    k, center, privacy = given["n_components"], bool(given["center"]), given.pop("privacy")
    check_choice("missing", given["missing"], MISSING)
    check_whole("n_components", k, 1)
    check_whole("max_rounds", given["max_rounds"], 1)
    check_positive("tol", given["tol"])
    check_choice("scale", given["scale"], (True, False))
    if given.pop("maf") is not None:
        raise InputError(
            f"maf={asked.parameters['maf']} must be None in a plan: how many variants are left is "
            "known only after a fit"
        )
    asked.check_components(int(k))
    named = find_solver(given.pop("solver"))
    auto = cheapest_exact(asked.n, asked.d, int(k)).name if named is None else named.name
    known = FAMILIES["FederatedPCA"]
    if privacy is not None:
        auto = private_solver(asked.d)
        known = {name: known[name] for name in PRIVATE_SOLVERS if name in known}
    names = ("n_components", "center", "scale", "tol", "max_rounds", "missing")
    parameters = {name: given[name] for name in names}
    variances = np.sort(asked.variances(center=center))[::-1]
    return Choice(
        solvers=_solvers(solvers, asked.program, known, named),
        auto=auto,
        rehearse=partial(_rehearse_pca, asked, parameters, privacy, variances),
        k=int(k),
        parties=asked.parties,
        parameters=parameters,
        variances=variances,
        needs_each=lambda solver: bool(solver.seen) and privacy is None,
        assumes=(SITES_ARE_ALIKE,),
    )


def _rehearse_pca(
    asked: PlannedFit,
    parameters: Mapping[str, Any],
    privacy: Privacy | None,
    variances: Array,
    solver: Any,
    secure: bool,
) -> Rehearsal:
    """Rehearse on few features; if the solver takes few rounds, on as many as it needs."""
    k = int(parameters["n_components"])
    at = partial(_at_size, asked, parameters, privacy, variances, solver, secure)
    width = min(k, MAX_K)
    sides = (
        max(MAX_SIDE, PER_DIRECTION * width),
        max(MAX_WIDE_SIDE, PER_DIRECTION_OF_WIDE * width),
    )
    small = at(width, min(asked.d, sides[0]))
    is_cut = small.stage.cast.side < asked.d and small.iterates
    if is_cut and small.rounds <= FEW_ROUNDS:
        return at(width, min(asked.d, sides[1]))
    if MAX_K < k <= MAX_K_OF_ONE_ROUND and not small.iterates:
        return at(k, min(asked.d, PER_DIRECTION * k))
    return small


def _at_size(
    asked: PlannedFit,
    parameters: Mapping[str, Any],
    privacy: Privacy | None,
    variances: Array,
    solver: Any,
    secure: bool,
    k: int,
    side: int,
) -> Rehearsal:
    """Rehearse with so many components and made-up features."""
    real = int(parameters["n_components"])
    leading = variances[np.linspace(0, real - 1, k).astype(int)]
    rest = evenly_thinned(variances[real:], (side - k) // 2, side - k)
    kept = np.concatenate([leading, rest])
    own = {**parameters, "n_components": k, "solver": solver}
    # the tolerance is a share of the sum of the variances
    own["tol"] *= float(variances.sum() / (kept.sum() or 1.0))
    program: Callable[..., Any] = principal_components
    if privacy is not None:
        if isinstance(privacy.around, tuple):
            privacy = replace(privacy, around=privacy.around[: len(kept)])
        program, own["privacy"] = private_components, privacy
    cast = Cast.of(asked.parties, len(kept), MAX_SITES, real / k)
    flags = {"center": bool(parameters["center"]), "scale": bool(parameters["scale"])}

    def once(seed: int, secure: bool) -> Rehearsal:
        is_drawn = seed % 3 > 0  # two of three have variances with sampling errors
        rng = np.random.default_rng(seed)
        made_up = alike(rng, cast.rows, kept, is_drawn=is_drawn, **flags)
        settings = {"privacy": privacy, "is_drawn": is_drawn, "secure": secure}
        return rehearse(asked.stage(made_up, cast, partial(program, **own), **settings), seed)

    return usual(once, secure=secure, first=N_STARTS)


def _choose_personalized(asked: PlannedFit, solvers: Iterable[Any] | None) -> Choice:
    given, ranks = dict(asked.parameters), LocalRanks.of(asked.parameters["n_local"])
    ranks.check_sites([party.name for party in asked.parties])
    ranks.check_features(given["n_shared"], asked.d)
    named = find_solver(given.pop("solver"), asked.program)
    seed = given.pop("random_state")
    given["n_local"] = ranks.plain
    for_files = {
        **given,
        "solver": to_plain(asked.parameters["solver"]),
        "random_state": seed if isinstance(seed, int | None) else None,
    }
    given["gather"] = bool(given["gather"])
    parties = [party._replace(n_local=ranks.at(party.name)) for party in asked.parties]
    center = given["center"] != "none"
    k = given["n_shared"] + ranks.most
    asked.check_components(k)
    variances = asked.variances(center=center)
    return Choice(
        solvers=_solvers(solvers, asked.program, FAMILIES[asked.program], named),
        auto=named.name,
        rehearse=partial(_rehearse_personalized, asked, parties, given, for_files, variances),
        k=k,
        parties=parties,
        parameters=given,
        variances=variances,
        needs_each=lambda _: given["gather"],
        assumes=("sites have the shared components in common and nothing else",),
    )


def _rehearse_personalized(
    asked: PlannedFit,
    parties: Sequence[Party],
    parameters: Mapping[str, Any],
    for_files: Mapping[str, Any],
    variances: Array,
    solver: Any,
    secure: bool,
) -> Rehearsal:
    n_shared, most = int(parameters["n_shared"]), LocalRanks.of(parameters["n_local"]).most
    n_leading = n_shared + most
    kept = evenly_thinned(variances, n_leading, max(MAX_SIDE, PER_DIRECTION * n_leading))
    cast = Cast.of(parties, len(kept), MAX_SITES)

    def once(seed: int, secure: bool) -> Rehearsal:
        made_up = sharing(np.random.default_rng(seed), cast.rows, kept, n_shared)
        # the header that sites get also holds the number of rows, which has more digits
        digits = len(str(asked.n)) - len(str(sum(map(len, made_up.values()))))
        padded = {**for_files, "start": for_files["start"] + digits * " "}
        program = partial(shared_and_local, solver=solver, for_files=padded, **parameters)
        return rehearse(asked.stage(made_up, cast, program, secure=secure), seed)

    return usual(once, secure=secure)


def _choose_robust(asked: PlannedFit, solvers: Iterable[Any] | None) -> Choice:
    given = dict(asked.parameters)
    named = find_solver(given.pop("solver"), asked.program)
    del given["random_state"]
    if (given["n_components"] is None) == (given["max_components"] is None):
        raise InputError("a plan needs either n_components or max_components, not both")
    bound = given["n_components"] or given["max_components"]
    asked.check_components(bound)
    variances = asked.variances(center=given["center"] != "none")

    def problem_of(solver: Any) -> str:
        lacks_rank = solver.needs_rank and given["n_components"] is None
        return "it requires the number of components, not a bound on it" if lacks_rank else ""

    return Choice(
        solvers=_solvers(solvers, asked.program, FAMILIES[asked.program], named),
        auto=named.name,
        rehearse=partial(_rehearse_robust, asked, given, bound, variances),
        k=bound,
        parties=asked.parties,
        parameters=given,
        variances=variances,
        needs_each=lambda _: False,
        problem_of=problem_of,
        assumes=(SITES_ARE_ALIKE, "a twentieth of the entries are outliers"),
    )


def _rehearse_robust(
    asked: PlannedFit,
    parameters: Mapping[str, Any],
    bound: int,
    variances: Array,
    solver: Any,
    secure: bool,
) -> Rehearsal:
    kept = evenly_thinned(variances, bound, max(MAX_SIDE, PER_DIRECTION * bound))
    cast, own = Cast.of(asked.parties, len(kept), MAX_SITES), dict(parameters)
    if solver.needs_rank and own["n_components"] is None:
        own |= {"n_components": bound, "max_components": None}

    def once(seed: int, secure: bool) -> Rehearsal:
        made_up = with_outliers(np.random.default_rng(seed), cast.rows, kept)
        program = partial(low_rank_and_sparse, solver=solver, **own)
        return rehearse(asked.stage(made_up, cast, program, secure=secure), seed)

    return usual(once, secure=secure)


CHOICES: Mapping[str, Callable[[PlannedFit, Iterable[Any] | None], Choice]] = {
    "FederatedPCA": _choose_pca,
    "PersonalizedPCA": _choose_personalized,
    "RobustPCA": _choose_robust,
}


def _solvers(
    given: Iterable[Any] | None, program: str, all_: Mapping[str, Any], own: Any
) -> list[Any]:
    """Return the solvers to plan for; by default, all, with ``own`` replacing its namesake."""
    if given is None:
        known = dict(all_) if own is None else {**all_, own.name: own}
        return list(known.values())
    items = [given] if isinstance(given, str) or hasattr(given, "solve") else list(given)
    named = (find_solver(item, program) for item in items)
    found = [solver for solver in named if solver is not None]
    if len(found) < len(items) or not found:
        raise InputError(
            f"solvers must name one or more of {', '.join(all_)}; omit 'auto', which only chooses "
            "among them"
        )
    return found


def _scaled(falling: Array, privacy: Privacy) -> Array:
    """Scale variances so that typical rows are a little shorter than the row bound."""
    return np.asarray(falling * (TYPICAL_LENGTH * privacy.row_bound) ** 2 / falling.sum())
