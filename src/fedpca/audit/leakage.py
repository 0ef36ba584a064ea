"""Measure how well each site's covariance can be estimated from what a solver sends.

::

    relative error = ||C^ - C||_F / ||C||_F,   C = A'A of one site's rows about the common mean

The error is that of the best attack here, after each round, for every site, solver and listener. What
the attacks find is certainly revealed. Nothing is proved about the remainder: a better attack may come.

>>> import numpy as np
>>> from fedpca.audit.leakage import audit
>>> rng = np.random.default_rng(0)
>>> sites = {"north": rng.normal(size=(50, 6)), "south": rng.normal(size=(40, 6)) * [3, 1, 1, 1, 1, 1]}
>>> leakage = audit(sites, 2, solvers=["power"])
>>> leakage.best("power", "seen", "south").error < 1e-6  # each site's answers reveal everything
True
>>> leakage.best("power", "summed", "south").error > 0.1  # their sums do not
True
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from fedpca.arrays import Array
from fedpca.audit.attacks import ATTACKS, BESIDE, MASKED, ROUNDS, pairs_of, published, up_to_round
from fedpca.audit.exposures import Exposure, Leakage, Target
from fedpca.audit.simulation import MAX_FEATURES as MAX_SIMULATED_FEATURES
from fedpca.audit.simulation import simulated_covariance
from fedpca.audit.transcript import LISTENERS, Transcript, View, record
from fedpca.errors import InputError, PolicyRefused
from fedpca.estimators import FederatedPCA
from fedpca.linalg.dense import unpack_triangle
from fedpca.rows.open import open_rows
from fedpca.site.site import Site
from fedpca.solvers.catalogue import SOLVERS, find_solver
from fedpca.solvers.contract import Solver

MAX_FEATURES = 1000  # estimates are d x d, one for each attack, round and site
MIN_VARIANCE_SHARE = 1e-20  # a site with a smaller share of all variance counts as constant


def audit(
    sites: Any,
    n_components: Any,
    *,
    solvers: Iterable[str | Solver] | str | Solver | None = None,
    refits: int = 5,
    colluding: Iterable[str] | str = (),
    simulate: bool = False,
    random_state: int = 0,
    on_solver: Callable[[str], None] | None = None,
    **parameters: Any,
) -> Leakage:
    """Fit small data on this machine, record all messages, and attack them.

    Parameters
    ----------
    sites : list or dict
        Rows of each site, as for `FederatedPCA.fit`; at most 1000 features.
    n_components : int, float or str
        As for `FederatedPCA`.
    solvers : iterable of str or Solver, optional
        Names in the catalogue, or values with options, as in ``Faps(penalty=0.2)``; by default all
        solvers that the sites' policies allow.
    refits : int
        Number of further fits from other starts, for the attack that combines fits.
    colluding : iterable of str
        Sites that tell the coordinator their own parts of every sum; the other sites are attacked.
    simulate : bool
        Whether to attack "faps" by simulation, too (`fedpca.audit.simulation`). This takes at most 40
        features, and about a minute for each site at 30 features.
    random_state : int
        Seed of the first fit's start; the refits use the seeds that follow.
    on_solver : callable, optional
        Called with the name of each solver before it is attacked.
    **parameters
        Parameters of `FederatedPCA`: ``scale``, ``tol``, ``max_rounds``.
    """
    attacked = _solvers(solvers)
    most = MAX_SIMULATED_FEATURES if simulate else MAX_FEATURES
    _check(sites, refits, random_state, most)

    def runs_of(solver: Solver, n: int) -> list[Transcript]:
        seeds = range(random_state, random_state + n)
        models = (
            FederatedPCA(n_components, solver=solver, random_state=s, **parameters) for s in seeds
        )
        return [_recorded(model, sites) for model in models]

    exact = runs_of(SOLVERS["covariance"], 1)[0]
    truth, rows = _covariances(exact)
    honest = _honest(truth, _names(colluding))
    exposures: list[Exposure] = []
    for solver in attacked:
        name = solver.name
        if on_solver is not None:
            on_solver(name)
        try:
            runs = runs_of(solver, 1 + refits)
        except PolicyRefused:
            if solvers is None:
                continue  # by default, solvers that a policy forbids are left out
            raise
        for site, target in honest.items():
            for listener in LISTENERS:
                views = [run.heard(site, listener, rows, honest) for run in runs]
                results = _attacked(views, target)
                exposures += [Exposure(name, listener, site, *figures) for figures in results]
            if simulate and name == "faps":
                seen = runs[0].heard(site, "seen", rows)
                exposures += _simulated(seen, site, target)
    return Leakage(tuple(exposures), _guesses(exact, honest, rows))


def rounds_to_look_at(last: int) -> list[int]:
    """Return the rounds to attack: all up to 5, then each about 1.5 times the former, and the last."""
    rounds = [1]
    while rounds[-1] < last:
        rounds.append(rounds[-1] + max(1, rounds[-1] // 2 if rounds[-1] >= 5 else 1))
    return [*rounds[:-1], last] if len(rounds) > 1 else rounds


def _attacked(views: Sequence[View], target: Target) -> Iterator[tuple[str, int, float, float]]:
    """Yield attack, round, error and exposed share for each attack that gives an estimate."""
    last = sum(heard.question in ROUNDS for heard in views[0].messages)
    for n_rounds in rounds_to_look_at(max(last, 1)):
        runs = [up_to_round(view, n_rounds) for view in views]
        for name, attack in ATTACKS.items():
            estimate = attack(runs)
            if estimate is not None:
                near = _without_negative(estimate)
                yield name, n_rounds, target.error(near), target.exposed(near)


def _simulated(view: View, site: str, target: Target) -> list[Exposure]:
    """Return the exposure of one site to the attack by simulation, if it gives an estimate."""
    estimate = simulated_covariance([view])
    if estimate is None:
        return []
    near = _without_negative(estimate)
    last = len(pairs_of(view, MASKED))
    figures = (target.error(near), target.exposed(near))
    return [Exposure("faps", "seen", site, "simulation", last, *figures)]


def _without_negative(estimate: Array) -> Array:
    """Return the nearest positive semidefinite matrix, since everybody knows that C is one."""
    values, vectors = np.linalg.eigh((estimate + estimate.T) / 2)
    return np.asarray(vectors * np.maximum(values, 0.0) @ vectors.T)


def _covariances(run: Transcript) -> tuple[dict[str, Array], dict[str, int]]:
    """Return each site's C and row count, which the covariance solver sends as they are."""
    by_question = {exchange.question: exchange for exchange in run.rounds.values()}
    triangles = by_question["covariance_triangle"].answers
    totals = by_question["count_and_sum"].answers
    return (
        {site: unpack_triangle(answer["triangle"]) for site, answer in triangles.items()},
        {site: int(answer["n"]) for site, answer in totals.items()},
    )


def _honest(truth: dict[str, Array], colluding: list[str]) -> dict[str, Target]:
    """Return the sites to attack: those that do not collude and whose rows vary."""
    if unknown := set(colluding) - set(truth):
        raise InputError(
            f"colluding={sorted(unknown)} are not sites; the sites are {', '.join(truth)}"
        )
    least = MIN_VARIANCE_SHARE * sum(np.trace(C) for C in truth.values())
    honest = {
        site: Target.of(C)
        for site, C in truth.items()
        if site not in colluding and np.trace(C) > least
    }
    if not honest:
        raise InputError(
            f"colluding={colluding} leaves no site with rows that vary to attack; name fewer sites"
        )
    return honest


def _guesses(run: Transcript, honest: dict[str, Target], rows: dict[str, int]) -> dict[str, float]:
    """Return the error of the better guess for each site: by the model, or by all honest sites."""
    whole = np.sum([target.C for target in honest.values()], axis=0)
    n = sum(rows[site] for site in honest)
    guesses = {}
    for site, target in honest.items():
        by_model = published([run.heard(site, "published", rows)])
        by_whole = rows[site] / n * whole
        guesses[site] = min(target.error(by_model), target.error(by_whole))
    return guesses


def _check(sites: Any, refits: int, random_state: Any, most_features: int) -> None:
    """Refuse bad input before anything is fitted."""
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
                f"{d} features exceed the {most_features} that this audit can handle; audit the same "
                "rows with fewer columns"
            )


def _solvers(given: Any) -> list[Solver]:
    """Return the solvers to attack; None stands for all in the catalogue."""
    if given is None:
        return list(SOLVERS.values())
    items = [given] if isinstance(given, str | Solver) else list(given)
    chosen = [solver for solver in map(find_solver, items) if solver is not None]
    if not chosen or len(chosen) < len(items):
        raise InputError(f"solvers={given!r} must name solvers out of {', '.join(SOLVERS)}")
    return chosen


def _names(names: Iterable[str] | str) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _recorded(model: FederatedPCA, sites: Any) -> Transcript:
    """Return the messages of a fit; refuse a question that no attack knows."""
    with warnings.catch_warnings():
        # a run that stops early reveals no more than a whole one
        warnings.simplefilter("ignore", ConvergenceWarning)
        run = record(model, sites)
    for exchange in run.rounds.values():
        if exchange.question not in (*ROUNDS, *BESIDE):
            raise InputError(
                f"no attack knows the question {exchange.question!r}; add one to "
                "fedpca.audit.attacks"
            )
    return run
