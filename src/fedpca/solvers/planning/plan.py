"""Tell what a fit would cost and reveal with each solver, before any site is asked.

The program of the fit runs in this process on made-up rows (`fedpca.solvers.planning.rehearsal`). The
messages of this rehearsal are counted at the size of the fit (`fedpca.solvers.planning.messages`), and
time and memory follow from them (`fedpca.solvers.planning.machines`).

No rows are needed, nothing is sent, and no privacy budget is spent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Protocol

import numpy as np

from fedpca.arrays import Array
from fedpca.errors import InputError
from fedpca.privacy.gaussian import Privacy
from fedpca.site.policy import Policy
from fedpca.solvers.catalogue import (
    AUTO,
    chosen_by_auto,
)
from fedpca.solvers.contract import check_whole
from fedpca.solvers.planning.choice import ASSUMED, CHOICES, PlannedFit
from fedpca.solvers.planning.conditions import Conditions
from fedpca.solvers.planning.machines import BANDWIDTH, LATENCY_S, speed_of
from fedpca.solvers.planning.made_up import Party
from fedpca.solvers.planning.solver_plan import Plan, recommend

DEFAULTS = {  # the default parameters of FederatedPCA
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
        The approximate number of rows at all sites together, or each site's number of rows by its name.
    features : int or list of str
        The number of features, or their names, which sites send in the first round.
    model : int or estimator
        An unfitted `FederatedPCA`, `PersonalizedPCA`, or `RobustPCA`; or the number of components of a
        `FederatedPCA`. If you pass an estimator, set its parameters there.
    sites : int or list of str
        The number of sites, or their names, unless ``rows`` names them.
    solvers : iterable of str or solver, optional
        The solvers, or methods, to plan for; by default, all in the catalogue.
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
        the site would check it.
    variances : array of shape (n_features,), optional
        The variances along the components: a guess, or those of public rows. They must not come from
        private rows. By default, they fall as 1, 1/2, 1/3, and so on. For
        `PersonalizedPCA`, they are those of one site: along the shared components, along its local
        ones, and then along all others, in this order.
    latency, bandwidth, flops, read_rate : float, optional
        The speeds of the network and the machines, as in `Speed`. By default, ``latency`` is 0.05
        s, ``bandwidth`` is 12.5 MB/s, and the other speeds are measured on this machine, with rows
        in memory.

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
    asked = PlannedFit(program, parameters, parties, names, d, weighted, in_order, given, is_secure)
    choice = CHOICES[program](asked, solvers)
    read = Policy.load(policy) if isinstance(policy, str | os.PathLike) else policy
    speed = speed_of(latency, bandwidth, flops, read_rate)
    conditions = Conditions(program, d, is_secure, promised, read, speed)
    planned = tuple(conditions.plan_for(choice, each) for each in choice.solvers)
    rivals = [solver.name for solver in chosen_by_auto()] if given is not None else ()
    recommended, reason = recommend(planned, choice.auto, rivals)
    assumes = [] if given is not None else [ASSUMED]
    if not isinstance(rows, Mapping):
        assumes.append("all sites have about the same number of rows")
    if names is None:
        assumes.append("columns have no names")
    assumes += choice.assumes
    share = asked.expected_share()
    return Plan(planned, choice.auto, recommended, reason, speed, tuple(assumes), share)


def _parameters(model: Any, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the program and the parameters of an estimator, or those of `FederatedPCA`."""
    name = type(model).__name__
    if name not in CHOICES:
        return "FederatedPCA", {**DEFAULTS, **given, "n_components": model}
    if given:
        raise InputError(
            f"{', '.join(given)} must not be passed to plan for a {name}; set them on the estimator"
        )
    model._validate_params()
    own = model.get_params(deep=False)
    return name, {k: v.item() if isinstance(v, np.generic) else v for k, v in own.items()}


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
    return np.pad(given, (0, d - given.size))
