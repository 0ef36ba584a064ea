"""The leak lab: how well each site's covariance can be worked out from what a solver sends.

::

    relative error = ||C^ - C||_F / ||C||_F,   C = A'A of one site's rows about the common mean

after each round, for every site, solver and listener, by the best attack that is known here. Nothing
is proved: a better attack may come. What the attacks find is certainly revealed.

>>> import numpy as np
>>> from fedpca.privacy.leakage import audit
>>> rng = np.random.default_rng(0)
>>> sites = {"north": rng.normal(size=(50, 6)), "south": rng.normal(size=(40, 6)) * [3, 1, 1, 1, 1, 1]}
>>> found = audit(sites, 2, solvers=["power"])
>>> found.best("power", "seen", "south").error < 1e-6  # each site's answers tell all
True
>>> found.best("power", "summed", "south").error > 0.1  # their sums do not
True
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from fedpca.errors import InputError, PolicyRefused
from fedpca.estimators import FederatedPCA
from fedpca.linalg import unpack_triangle
from fedpca.message import Array
from fedpca.privacy import simulation
from fedpca.privacy.attacks import (
    ATTACKS,
    BESIDE,
    MASKED,
    ROUNDS,
    pairs_of,
    published,
    up_to_round,
)
from fedpca.privacy.exposures import Exposure, Leakage, Target
from fedpca.privacy.transcript import LISTENERS, Transcript, View, record
from fedpca.rows import open_rows
from fedpca.site import Site
from fedpca.solvers import OPTIONS, SOLVERS

MOST_FEATURES = 1000  # estimates are d x d, one for each attack, round and site
ROUNDING = 1e-20  # part of all variance below which a site has none


def audit(
    sites: Any,
    n_components: Any,
    *,
    solvers: Iterable[str] | str | None = None,
    refits: int = 5,
    colluding: Iterable[str] | str = (),
    simulate: bool = False,
    random_state: int = 0,
    on_solver: Callable[[str], None] | None = None,
    **parameters: Any,
) -> Leakage:
    """Fit small data that is at hand, with all messages recorded, and attack them.

    Parameters
    ----------
    sites : list or dict
        Rows of each site, as for `FederatedPCA.fit`; at most 1000 features.
    n_components : int, float or str
        As for `FederatedPCA`.
    solvers : iterable of str, optional
        Of the catalogue; by default all that the sites' policies allow.
    refits : int
        How often the fit is repeated from another start, for the attack that uses this.
    colluding : iterable of str
        Sites that tell the coordinator their own parts of every sum; the others are attacked.
    simulate : bool
        Whether "faps" is attacked by simulation too (`fedpca.privacy.simulation`): at most 40 features,
        and a minute or so for each site at 30.
    random_state : int
        Seed of the first fit's start; those of the refits follow.
    on_solver : callable, optional
        Called with the name of each solver before it is attacked.
    **parameters
        Of `FederatedPCA`: ``scale``, ``tol``, ``max_rounds``, and options of single solvers.
    """
    names = list(SOLVERS) if solvers is None else _names(solvers)
    most = simulation.MOST_FEATURES if simulate else MOST_FEATURES
    _check(sites, names, refits, random_state, most)

    def runs_of(solver: str, n: int) -> list[Transcript]:
        fitting = _parameters_of(solver, parameters)
        seeds = range(random_state, random_state + n)
        models = (
            FederatedPCA(n_components, solver=solver, random_state=s, **fitting) for s in seeds
        )
        return [_recorded(model, sites) for model in models]

    exact = runs_of("covariance", 1)[0]
    truth, rows = _covariances(exact)
    honest = _honest(truth, _names(colluding))
    exposures: list[Exposure] = []
    for solver in names:
        if on_solver is not None:
            on_solver(solver)
        try:
            runs = runs_of(solver, 1 + refits)
        except PolicyRefused:
            if solvers is None:
                continue  # of all solvers, those that the sites' policies allow
            raise
        for site, target in honest.items():
            for listener in LISTENERS:
                views = [run.heard(site, listener, rows, honest) for run in runs]
                found = _attacked(views, target)
                exposures += [Exposure(solver, listener, site, *figures) for figures in found]
            if simulate and solver == "faps":
                seen = runs[0].heard(site, "seen", rows)
                exposures += _simulated(seen, site, target)
    return Leakage(tuple(exposures), _guesses(exact, honest, rows))


def rounds_to_look_at(last: int) -> list[int]:
    """All rounds up to five, then each a half more than the one before, and the last."""
    rounds = [1]
    while rounds[-1] < last:
        rounds.append(rounds[-1] + max(1, rounds[-1] // 2 if rounds[-1] >= 5 else 1))
    return [*rounds[:-1], last] if len(rounds) > 1 else rounds


def _attacked(views: Sequence[View], target: Target) -> Iterator[tuple[str, int, float, float]]:
    """Attack, round, error and exposed share, of each attack that has something to work with."""
    last = sum(heard.question in ROUNDS for heard in views[0].messages)
    for n_rounds in rounds_to_look_at(max(last, 1)):
        runs = [up_to_round(view, n_rounds) for view in views]
        for name, attack in ATTACKS.items():
            estimate = attack(runs)
            if estimate is not None:
                near = _without_negative(estimate)
                yield name, n_rounds, target.error(near), target.exposed(near)


def _simulated(view: View, site: str, target: Target) -> list[Exposure]:
    found = simulation.simulation([view])
    if found is None:
        return []
    near = _without_negative(found)
    last = len(pairs_of(view, MASKED))
    figures = (target.error(near), target.exposed(near))
    return [Exposure("faps", "seen", site, "simulation", last, *figures)]


def _without_negative(estimate: Array) -> Array:
    """The nearest symmetric matrix without a negative eigenvalue: everybody knows that C is one."""
    values, vectors = np.linalg.eigh((estimate + estimate.T) / 2)
    return np.asarray(vectors * np.maximum(values, 0.0) @ vectors.T)


def _covariances(run: Transcript) -> tuple[dict[str, Array], dict[str, int]]:
    """Each site's C and number of rows, which the covariance solver sends as they are."""
    by_question = {exchange.question: exchange for exchange in run.rounds.values()}
    triangles = by_question["covariance_triangle"].answers
    totals = by_question["totals"].answers
    return (
        {site: unpack_triangle(answer["triangle"]) for site, answer in triangles.items()},
        {site: int(answer["n"]) for site, answer in totals.items()},
    )


def _honest(truth: dict[str, Array], colluding: list[str]) -> dict[str, Target]:
    """The sites to attack: those that do not collude and have something to hide."""
    if unknown := set(colluding) - set(truth):
        raise InputError(
            f"no site {sorted(unknown)} that could collude; there are {', '.join(truth)}"
        )
    rounding = ROUNDING * sum(np.trace(C) for C in truth.values())
    honest = {
        site: Target.of(C)
        for site, C in truth.items()
        if site not in colluding and np.trace(C) > rounding
    }
    if not honest:
        raise InputError(
            f"colluding={colluding} leaves no site whose rows vary to be attacked; name fewer"
        )
    return honest


def _guesses(run: Transcript, honest: dict[str, Target], rows: dict[str, int]) -> dict[str, float]:
    """The error of the better guess at each site: by the model, or by all that honest sites have."""
    whole = np.sum([target.C for target in honest.values()], axis=0)
    n = sum(rows[site] for site in honest)
    guesses = {}
    for site, target in honest.items():
        by_model = published([run.heard(site, "published", rows)])
        by_whole = rows[site] / n * whole
        guesses[site] = min(target.error(by_model), target.error(by_whole))
    return guesses


def _check(
    sites: Any, solvers: list[str], refits: int, random_state: Any, most_features: int
) -> None:
    """Refuse what cannot be done before anything is fitted."""
    if not solvers or set(solvers) - set(SOLVERS):
        unknown = sorted(set(solvers) - set(SOLVERS))
        raise InputError(f"no solver {unknown}; there are {', '.join(SOLVERS)}")
    if not isinstance(refits, Integral) or refits < 0:
        raise InputError(f"refits={refits} must be a whole number, 0 or more")
    if not isinstance(random_state, Integral) or not 0 <= random_state < 2**31:
        raise InputError(
            f"random_state={random_state!r} must be a whole number from 0 to 2**31 - 1"
        )
    if not isinstance(sites, Mapping | list | tuple):
        raise InputError(f"give a dict or list of sites' rows, not {type(sites).__name__}")
    for rows in sites.values() if isinstance(sites, Mapping) else sites:
        d = (rows.rows if isinstance(rows, Site) else open_rows(rows)).n_features
        if d > most_features:
            raise InputError(
                f"{d} features exceed the {most_features} of which these estimates are feasible; audit "
                "the same rows with fewer columns"
            )


def _names(names: Iterable[str] | str) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _parameters_of(solver: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Those that are not options of other solvers."""
    of_others = {name for options in OPTIONS.values() for name in options}
    of_others -= set(OPTIONS.get(solver, ()))
    return {name: value for name, value in parameters.items() if name not in of_others}


def _recorded(model: FederatedPCA, sites: Any) -> Transcript:
    with warnings.catch_warnings():
        # a run that was cut short reveals no more than a whole one
        warnings.simplefilter("ignore", ConvergenceWarning)
        run = record(model, sites)
    for exchange in run.rounds.values():
        if exchange.question not in (*ROUNDS, *BESIDE):
            raise InputError(
                f"no attack knows the question {exchange.question!r}; add one to "
                "fedpca.privacy.attacks"
            )
    return run
