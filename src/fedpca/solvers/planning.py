"""Tell what a fit would cost and reveal with each solver, before any site is asked.

The course of a fit says what the sites would be asked: `fedpca.solvers.pca_course` and the ``course``
of the other two families find it on made-up rows. `fedpca.solvers.conditions` counts its messages, and
estimates time and memory.

No rows are needed, nothing is sent, and nothing is taken from a privacy budget.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.privacy.gaussian import Privacy
from fedpca.rows.gaps import MISSING
from fedpca.site.policy import Policy
from fedpca.solvers.catalogue import (
    AUTO,
    PERSONALIZED,
    ROBUST,
    SOLVERS,
    cheapest_exact,
    chosen_by_auto,
    find_personalized,
    find_robust,
    find_solver,
    to_plain,
)
from fedpca.solvers.common_features import names_to_bytes
from fedpca.solvers.conditions import Conditions
from fedpca.solvers.contract import check_choice, check_positive, check_whole
from fedpca.solvers.costs import Sizes
from fedpca.solvers.course import Course
from fedpca.solvers.pca_course import PcaFit
from fedpca.solvers.personalized.course import PersonalizedFit
from fedpca.solvers.personalized.local_ranks import LocalRanks
from fedpca.solvers.private.program import private_solver
from fedpca.solvers.private.utility import expected_share
from fedpca.solvers.robust.course import RobustFit
from fedpca.solvers.solver_plan import Plan, recommend
from fedpca.solvers.traffic import Party
from fedpca.solvers.workload import BANDWIDTH, LATENCY_S, speed_of

TYPICAL_LENGTH = 0.8  # of a row about the mean, as a share of the row bound, if nothing is known
ALIKE = "sites are alike"
ASSUMED = "variances fall as 1, 1/2, 1/3, and so on"
DEFAULTS = {  # of FederatedPCA
    "center": True,
    "scale": False,
    "missing": "error",
    "tol": 1e-10,
    "max_rounds": 500,
    "privacy": None,
    "maf": None,
    "solver": AUTO,
}


class Estimator(Protocol):
    """An estimator whose parameters are those of its program."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters by name."""
        ...


def plan(
    rows: int | Mapping[str, int],
    features: int | Sequence[str],
    model: int | Estimator,
    *,
    sites: int | Sequence[str] = 3,
    solvers: Iterable[Any] | None = None,
    center: bool | None = None,
    scale: bool | None = None,
    missing: str | None = None,
    weighted: bool = False,
    in_order: bool = True,
    tol: float | None = None,
    max_rounds: int | None = None,
    secure: bool | None = None,
    privacy: Privacy | None = None,
    policy: Policy | str | os.PathLike[str] | None = None,
    variances: Sequence[float] | Array | None = None,
    latency: float = LATENCY_S,
    bandwidth: float = BANDWIDTH,
    flops: float | None = None,
    read_rate: float | None = None,
) -> Plan:
    """Return what a fit would cost and reveal with each solver.

    Nothing is sent, and no rows are read.

    Parameters
    ----------
    rows : int or dict
        About how many rows all sites have, or the number of rows of each site by its name.
    features : int or list of str
        How many features they have, or their names, which sites tell in the first round.
    model : int or estimator
        An unfitted `FederatedPCA`, `PersonalizedPCA`, or `RobustPCA`; or the number of components of a
        `FederatedPCA`. With an estimator, set what it has as parameters there.
    sites : int or list of str
        The number of sites, or their names, unless ``rows`` has them.
    solvers : iterable of str or solver, optional
        The solvers, or methods, to plan for; by default, all of the catalogue.
    center, scale, missing, tol, max_rounds
        As for `FederatedPCA`.
    weighted : bool
        Whether the rows of some site have weights.
    in_order : bool
        Whether all sites have their columns in the same order. Otherwise, sites are sent the names.
    secure : bool, optional
        Whether sums are secure; by default, only with ``privacy`` and several sites.
    privacy : Privacy, optional
        The promise of a differentially private fit.
    policy : Policy or path, optional
        The policy of a site, or the file that holds it, which is held against the plan of each solver
        as the site would.
    variances : array of shape (n_features,), optional
        The variances along the components: a guess, or those of public rows. They must not come from
        rows that nobody may see. By default, they fall as 1, 1/2, 1/3, and so on. For
        `PersonalizedPCA`, they are those of one site: along the shared components, along its local
        ones, and then along all others, in this order.
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
    >>> planned = fedpca.plan(9000, 30, fedpca.RobustPCA(3), solvers=["threshold"])
    >>> planned["threshold"].discloses["hard_round"]
    'summed'
    """
    own = {
        "center": center,
        "scale": scale,
        "missing": missing,
        "tol": tol,
        "max_rounds": max_rounds,
        "privacy": privacy,
    }
    program, parameters = _parameters(model, {k: v for k, v in own.items() if v is not None})
    promised = parameters.get("privacy")
    parties = _parties(rows, sites)
    names = None if isinstance(features, Integral) else list(features)  # type: ignore[arg-type]
    d = int(features) if names is None else len(names)  # type: ignore[arg-type]
    check_whole("features", d, 1)
    is_secure = promised is not None and len(parties) > 1 if secure is None else secure
    if is_secure and len(parties) < 2:
        raise InputError("secure=True needs at least two sites")
    given = None if variances is None else _checked(variances, d)
    if given is not None and program != "PersonalizedPCA":
        given = np.sort(given)[::-1]
    asked = _Asked(program, parameters, parties, names, d, weighted, in_order, given, is_secure)
    choice = CHOICES[program](asked, solvers)
    read = Policy.load(policy) if isinstance(policy, str | os.PathLike) else policy
    speed = speed_of(latency, bandwidth, flops, read_rate)
    conditions = Conditions(choice.parties, choice.sizes, is_secure, promised, read, speed)
    planned = tuple(conditions.plan_for(choice.course(each), each) for each in choice.solvers)
    rivals = [solver.name for solver in chosen_by_auto()] if given is not None else ()
    recommended, reason = recommend(planned, choice.auto, rivals)
    assumes = [] if given is not None else [ASSUMED]
    if not isinstance(rows, Mapping):
        assumes.append("all sites have about as many rows")
    if names is None:
        assumes.append("columns have no names")
    assumes += choice.assumes
    share = asked.expected_share()
    return Plan(planned, choice.auto, recommended, reason, speed, tuple(assumes), share)


@dataclass(frozen=True)
class _Asked:
    """What is to be planned, checked as far as all programs have it in common."""

    program: str
    parameters: Mapping[str, Any]
    parties: Sequence[Party]
    names: Sequence[str] | None
    d: int
    weighted: bool
    in_order: bool
    given: Array | None  # variances
    secure: bool

    @property
    def n(self) -> int:
        """Return the rows of all sites."""
        return sum(party.rows for party in self.parties)

    def sizes(self, k: int, *, center: bool, missing: str = "error") -> Sizes:
        """Return the size of a fit with k components."""
        n, d = self.n, self.d
        if k > min(n, d):
            name = "n_components"
            raise InputError(
                f"{name}={k} exceeds the {min(n, d)} components that {n:,} rows of {d:,} features "
                f"have; use at most {min(n, d)}"
            )
        return Sizes(
            n,
            0,
            d,
            k,
            center,
            bool(self.parameters["scale"]),
            missing,
            self.weighted,
            name_bytes=0 if self.names is None else names_to_bytes(self.names).nbytes,
            in_order=self.in_order,
        )

    def variances(self, *, center: bool) -> Array:
        """Return variances along all components; no more are positive than rows allow."""
        if self.given is not None:
            return self.given
        falling = 1.0 / np.arange(1, self.d + 1)
        falling[max(self.n - center, 1) :] = 0.0
        return falling

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
class _Choice:
    """The solvers of a program, the one that it takes by default, and its course with each."""

    solvers: Sequence[Any]
    auto: str
    course: Callable[[Any], Course]
    sizes: Sizes
    parties: Sequence[Party]
    assumes: tuple[str, ...] = ()


def _parameters(model: Any, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the program and the parameters of an estimator, or those of `FederatedPCA`."""
    name = type(model).__name__
    if name not in CHOICES:
        return "FederatedPCA", {**DEFAULTS, **given, "n_components": model}
    if given:
        raise InputError(
            f"{', '.join(given)}: the {name} has these parameters itself; set them there"
        )
    model._validate_params()
    own = model.get_params(deep=False)
    return name, {k: v.item() if isinstance(v, np.generic) else v for k, v in own.items()}


def _choose_pca(asked: _Asked, solvers: Iterable[Any] | None) -> _Choice:
    given = asked.parameters
    k, center, privacy = given["n_components"], bool(given["center"]), given["privacy"]
    check_choice("missing", given["missing"], MISSING)
    check_whole("n_components", k, 1)
    check_whole("max_rounds", given["max_rounds"], 1)
    check_positive("tol", given["tol"])
    check_choice("scale", given["scale"], (True, False))
    if given["maf"] is not None:
        raise InputError(
            f"maf={given['maf']}: how many variants are left is not known before a fit"
        )
    sizes = asked.sizes(int(k), center=center, missing=given["missing"])
    fit = PcaFit(
        asked.parties,
        sizes,
        asked.variances(center=center),
        given["tol"],
        given["max_rounds"],
        asked.secure,
        privacy,
    )
    named = find_solver(given["solver"])
    auto = cheapest_exact(sizes.n, sizes.d, sizes.k).name if named is None else named.name
    if privacy is not None:
        auto = private_solver(sizes.d)
    mechanisms = ("covariance", "power") if privacy is not None else tuple(SOLVERS)
    all_solvers = {name: SOLVERS[name] for name in mechanisms}
    chosen = _solvers(solvers, find_solver, all_solvers, named)
    return _Choice(chosen, auto, fit.course, sizes, asked.parties, (ALIKE,))


def _choose_personalized(asked: _Asked, solvers: Iterable[Any] | None) -> _Choice:
    given, ranks = dict(asked.parameters), LocalRanks.of(asked.parameters["n_local"])
    ranks.check_sites([party.name for party in asked.parties])
    ranks.check_features(given["n_shared"], asked.d)
    named = find_personalized(given.pop("method"))
    seed = given.pop("random_state")
    given["n_local"] = ranks.plain
    for_files = {
        **given,
        "method": to_plain(asked.parameters["method"]),
        "random_state": seed if isinstance(seed, int | None) else None,
    }
    given["gather"] = bool(given["gather"])
    parties = [party._replace(n_local=ranks.at(party.name)) for party in asked.parties]
    center = given["center"] != "none"
    sizes = asked.sizes(given["n_shared"] + ranks.most, center=center)
    fit = PersonalizedFit(
        parties,
        sizes,
        asked.variances(center=center),
        given,
        for_files,
        asked.names,
        asked.secure,
    )
    chosen = _solvers(solvers, find_personalized, PERSONALIZED, named)
    assumes = ("sites have the shared components in common and nothing else",)
    return _Choice(chosen, named.name, fit.course, sizes, parties, assumes)


def _choose_robust(asked: _Asked, solvers: Iterable[Any] | None) -> _Choice:
    given = dict(asked.parameters)
    named = find_robust(given.pop("method"))
    del given["random_state"]
    if (given["n_components"] is None) == (given["max_components"] is None):
        raise InputError("a plan needs either n_components or max_components")
    center = given["center"] != "none"
    bound = given["n_components"] or given["max_components"]
    sizes = asked.sizes(bound, center=center)
    variances = asked.variances(center=center)
    fit = RobustFit(asked.parties, sizes, variances, given, asked.secure)
    chosen = _solvers(solvers, find_robust, ROBUST, named)
    assumes = (ALIKE, "a twentieth of the entries are outliers")
    return _Choice(chosen, named.name, fit.course, sizes, asked.parties, assumes)


CHOICES: Mapping[str, Callable[[_Asked, Iterable[Any] | None], _Choice]] = {
    "FederatedPCA": _choose_pca,
    "PersonalizedPCA": _choose_personalized,
    "RobustPCA": _choose_robust,
}


def _solvers(
    given: Iterable[Any] | None, find: Callable[[Any], Any], all_: Mapping[str, Any], own: Any
) -> list[Any]:
    """Return the solvers to plan for; by default all, of which ``own`` may have other options."""
    if given is None:
        known = dict(all_) if own is None else {**all_, own.name: own}
        return list(known.values())
    items = [given] if isinstance(given, str) or hasattr(given, "solve") else list(given)
    found = [solver for solver in map(find, items) if solver is not None]
    if len(found) < len(items) or not found:
        raise InputError(
            "solvers must name solvers other than 'auto', which is one of those that are planned: "
            f"{', '.join(all_)}"
        )
    return found


def _parties(rows: int | Mapping[str, int], sites: int | Sequence[str]) -> list[Party]:
    """Return the sites with their rows, which are spread evenly if only their number is known."""
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
            raise InputError(f"sites={sites!r} must be at least one name, each once")
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
        raise InputError("variances must not be negative, and not all of them zero")
    return np.pad(given, (0, d - given.size))


def _scaled(falling: Array, privacy: Privacy) -> Array:
    """Return variances such that typical rows are a little shorter than the row bound."""
    return np.asarray(falling * (TYPICAL_LENGTH * privacy.row_bound) ** 2 / falling.sum())
