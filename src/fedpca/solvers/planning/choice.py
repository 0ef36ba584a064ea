"""Say which solvers a fit can use, which one it uses by default, and what course it takes with each.

Each estimator's program has a function here that checks the parameters and returns the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.privacy.gaussian import Privacy
from fedpca.rows.gaps import MISSING
from fedpca.solvers.catalogue import (
    PERSONALIZED,
    ROBUST,
    SOLVERS,
    cheapest_exact,
    find_solver,
    to_plain,
)
from fedpca.solvers.common_features import names_to_bytes
from fedpca.solvers.contract import check_choice, check_positive, check_whole
from fedpca.solvers.costs import Sizes
from fedpca.solvers.personalized.course import PersonalizedFit
from fedpca.solvers.personalized.local_ranks import LocalRanks
from fedpca.solvers.planning.course import Course
from fedpca.solvers.planning.pca_course import PcaFit
from fedpca.solvers.planning.traffic import Party
from fedpca.solvers.private.program import private_solver
from fedpca.solvers.private.utility import expected_share
from fedpca.solvers.robust.course import RobustFit

TYPICAL_LENGTH = 0.8  # assumed length of a row about the mean, as a share of the row bound
ALIKE = "sites are alike"
ASSUMED = "variances fall as 1, 1/2, 1/3, and so on"


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
        """Return the variances along all components; no more are positive than the rows allow."""
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
class Choice:
    """A program's solvers, its default solver, and the course of a fit with each."""

    solvers: Sequence[Any]
    auto: str
    course: Callable[[Any], Course]
    sizes: Sizes
    parties: Sequence[Party]
    assumes: tuple[str, ...] = ()


def _choose_pca(asked: PlannedFit, solvers: Iterable[Any] | None) -> Choice:
    given = asked.parameters
    k, center, privacy = given["n_components"], bool(given["center"]), given["privacy"]
    check_choice("missing", given["missing"], MISSING)
    check_whole("n_components", k, 1)
    check_whole("max_rounds", given["max_rounds"], 1)
    check_positive("tol", given["tol"])
    check_choice("scale", given["scale"], (True, False))
    if given["maf"] is not None:
        raise InputError(
            f"maf={given['maf']} must be None in a plan: how many variants are left is known only "
            "after a fit"
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
    mechanisms = ("covariance", "subspace-iteration") if privacy is not None else tuple(SOLVERS)
    all_solvers = {name: SOLVERS[name] for name in mechanisms}
    chosen = _solvers(solvers, asked.program, all_solvers, named)
    return Choice(chosen, auto, fit.course, sizes, asked.parties, (ALIKE,))


def _choose_personalized(asked: PlannedFit, solvers: Iterable[Any] | None) -> Choice:
    given, ranks = dict(asked.parameters), LocalRanks.of(asked.parameters["n_local"])
    ranks.check_sites([party.name for party in asked.parties])
    ranks.check_features(given["n_shared"], asked.d)
    named = find_solver(given.pop("solver"), "PersonalizedPCA")
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
    chosen = _solvers(solvers, asked.program, PERSONALIZED, named)
    assumes = ("sites have the shared components in common and nothing else",)
    return Choice(chosen, named.name, fit.course, sizes, parties, assumes)


def _choose_robust(asked: PlannedFit, solvers: Iterable[Any] | None) -> Choice:
    given = dict(asked.parameters)
    named = find_solver(given.pop("solver"), "RobustPCA")
    del given["random_state"]
    if (given["n_components"] is None) == (given["max_components"] is None):
        raise InputError("a plan needs either n_components or max_components, not both")
    center = given["center"] != "none"
    bound = given["n_components"] or given["max_components"]
    sizes = asked.sizes(bound, center=center)
    variances = asked.variances(center=center)
    fit = RobustFit(asked.parties, sizes, variances, given, asked.secure)
    chosen = _solvers(solvers, asked.program, ROBUST, named)
    assumes = (ALIKE, "a twentieth of the entries are outliers")
    return Choice(chosen, named.name, fit.course, sizes, asked.parties, assumes)


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
