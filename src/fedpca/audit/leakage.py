"""Measure how well an attacker can estimate each site's covariance from what a solver sends.

::

    relative error = ||C^ - C||_F / ||C||_F,   C = A'A for one site's rows about the common mean

The audit reports the error of its best attack after each round, for every site, solver, and listener.
Whatever the attacks recover is certainly revealed. Nothing is proved about the rest, because a better
attack may exist.

>>> import numpy as np
>>> from fedpca.audit.leakage import audit
>>> rng = np.random.default_rng(0)
>>> sites = {"north": rng.normal(size=(50, 6)), "south": rng.normal(size=(40, 6)) * [3, 1, 1, 1, 1, 1]}
>>> leakage = audit(sites, 2, solvers=["lanczos"])
>>> leakage.best("lanczos", "seen", "south").error < 1e-6  # each site's answers reveal everything
True
>>> leakage.best("lanczos", "summed", "south").error > 0.1  # their sums do not
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
from fedpca.audit.attacks import (
    BESIDE,
    COVARIANCE_ATTACKS,
    MASKED,
    TELLING_QUESTIONS,
    pairs_of,
    published,
    up_to_round,
)
from fedpca.audit.exposures import Exposure, Leakage, Target
from fedpca.audit.simulation import MAX_SIMULATED_FEATURES, simulated_covariance
from fedpca.audit.transcript import LISTENERS, Transcript, View, record
from fedpca.errors import InputError, PolicyRefused
from fedpca.estimators import FederatedPCA
from fedpca.linalg.dense import unpack_triangle
from fedpca.rows.open import open_rows
from fedpca.site.site import Site
from fedpca.solvers.catalogue import SOLVERS, find_solver
from fedpca.solvers.contract import Solver

MAX_AUDITED_FEATURES = 1000  # estimates are d x d, one for each attack, round, and site
MIN_VARIANCE_SHARE = 1e-20  # a site with a smaller share of the variance is constant


def audit(
    sites: Any,
    n_components: Any,
    *,
    solvers: Iterable[str | Solver] | str | Solver | None = None,
    refits: int = 5,
    colluding: Iterable[str] | str = (),
    simulate: bool = False,
    secure: bool = False,
    random_state: int = 0,
    on_solver: Callable[[str], None] | None = None,
    **parameters: Any,
) -> Leakage:
    """Fit a small data set on this machine, record all messages, and attack them.

    Parameters
    ----------
    sites : list or dict
        Each site's rows, as for `FederatedPCA.fit`; at most 1000 features.
    n_components : int, float, or str
        As for `FederatedPCA`.
    solvers : iterable of str or Solver, optional
        Names in the catalogue, or solvers with options, such as ``Faps(penalty=0.2)``; by default, all
        solvers that the sites' policies allow.
    refits : int
        Number of additional fits from different starts, for the attack that combines fits.
    colluding : iterable of str
        Sites that reveal their parts of every sum to the coordinator; the other sites are attacked.
    simulate : bool
        Whether to also attack "faps" by simulation (`fedpca.audit.simulation`). This supports at most
        40 features, and takes about a minute per site with 30 features.
    secure : bool
        Whether the fits use secure sums, as in `Federation`. The listener "seen" then hears masked
        answers. Sites that collude reveal to this listener the masks that they share with other sites.
    random_state : int
        Seed for the first fit's start; the refits use the seeds that follow it.
    on_solver : callable, optional
        A function to call with the name of each solver before that solver is attacked.
    **parameters
        Parameters for `FederatedPCA`: ``scale``, ``tol``, and ``max_rounds``.
    """
    if secure and simulate:
        raise InputError(
            "simulate=True works on the sites' real answers, but masked answers are random; use "
            "simulate or secure, but not both"
        )
    attacked = _solvers(solvers, secure=secure)
    most = MAX_SIMULATED_FEATURES if simulate else MAX_AUDITED_FEATURES
    _check(sites, refits, random_state, most)

    def runs_of(solver: Solver, n: int, *, secure: bool) -> list[Transcript]:
        seeds = range(random_state, random_state + n)
        models = (
            FederatedPCA(n_components, solver=solver, random_state=s, **parameters) for s in seeds
        )
        return [_recorded(model, sites, secure=secure) for model in models]

    # the true covariances can only be computed from unmasked answers
    exact = runs_of(SOLVERS["covariance"], 1, secure=False)[0]
    truth, rows = _covariances(exact)
    honest = _honest(truth, _names(colluding))
    exposures: list[Exposure] = []
    for solver in attacked:
        name = solver.name
        if on_solver is not None:
            on_solver(name)
        try:
            runs = runs_of(solver, 1 + refits, secure=secure)
        except PolicyRefused:
            if solvers is None:
                continue  # by default, skip solvers that a policy forbids
            raise
        for site, target in honest.items():
            for listener in LISTENERS:
                views = [run.heard(site, listener, rows, honest) for run in runs]
                results = _attacked(views, target)
                exposures += [Exposure(name, listener, site, *figures) for figures in results]
            if simulate and name == "faps":
                seen = runs[0].heard(site, "seen", rows)
                exposures += _simulated(seen, site, target)
    return Leakage(tuple(exposures), _guesses(exact, honest, rows), is_secure=secure)


def rounds_to_look_at(last: int) -> list[int]:
    """Return the rounds to attack: 1 to 5, then each about 1.5 times the one before, and the last."""
    rounds = [1]
    while rounds[-1] < last:
        rounds.append(rounds[-1] + max(1, rounds[-1] // 2 if rounds[-1] >= 5 else 1))
    return [*rounds[:-1], last] if len(rounds) > 1 else rounds


def _attacked(views: Sequence[View], target: Target) -> Iterator[tuple[str, int, float, float]]:
    """Yield the attack, round, error, and exposed share for each attack that yields an estimate."""
    last = sum(heard.question in TELLING_QUESTIONS for heard in views[0].messages)
    for n_rounds in rounds_to_look_at(max(last, 1)):
        runs = [up_to_round(view, n_rounds) for view in views]
        for name, attack in COVARIANCE_ATTACKS.items():
            estimate = attack(runs)
            if estimate is not None:
                near = _without_negative(estimate)
                yield name, n_rounds, target.error(near), target.exposed(near)


def _simulated(view: View, site: str, target: Target) -> list[Exposure]:
    """Return one site's exposure to the simulation attack, if the attack yields an estimate."""
    estimate = simulated_covariance([view])
    if estimate is None:
        return []
    near = _without_negative(estimate)
    last = len(pairs_of(view, MASKED))
    figures = (target.error(near), target.exposed(near))
    return [Exposure("faps", "seen", site, "simulation", last, *figures)]


def _without_negative(estimate: Array) -> Array:
    """Return the nearest positive semidefinite matrix; any attacker knows that C is one."""
    values, vectors = np.linalg.eigh((estimate + estimate.T) / 2)
    return np.asarray(vectors * np.maximum(values, 0.0) @ vectors.T)


def _covariances(run: Transcript) -> tuple[dict[str, Array], dict[str, int]]:
    """Return each site's C and row count, which the covariance solver sends unchanged."""
    by_question = {exchange.question: exchange for exchange in run.rounds.values()}
    triangles = by_question["covariance_triangle"].answers
    totals = by_question["count_and_sum"].answers
    return (
        {site: unpack_triangle(answer["triangle"]) for site, answer in triangles.items()},
        {site: int(answer["n"]) for site, answer in totals.items()},
    )


def _honest(truth: dict[str, Array], colluding: list[str]) -> dict[str, Target]:
    """Return the sites to attack, which do not collude and have rows that vary."""
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
            f"colluding={colluding} leaves no site to attack whose rows vary; name fewer sites"
        )
    return honest


def _guesses(run: Transcript, honest: dict[str, Target], rows: dict[str, int]) -> dict[str, float]:
    """Return each site's smaller error of two guesses: from the model, and from the honest sites."""
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
        raise InputError(f"refits={refits} must be a nonnegative integer")
    if not isinstance(random_state, Integral) or not 0 <= random_state < 2**31:
        raise InputError(f"random_state={random_state!r} must be an integer from 0 to 2**31 - 1")
    if not isinstance(sites, Mapping | list | tuple):
        raise InputError(
            f"sites must be a dict or list with each site's rows, not {type(sites).__name__}"
        )
    for rows in sites.values() if isinstance(sites, Mapping) else sites:
        d = (rows.rows if isinstance(rows, Site) else open_rows(rows)).n_features
        if d > most_features:
            raise InputError(
                f"{d} features exceed the limit of {most_features} for this audit; audit the same rows "
                "with fewer columns"
            )


def _solvers(given: Any, *, secure: bool) -> list[Solver]:
    """Return the solvers to attack; None means all, or, if ``secure``, all that need only sums."""
    if given is None:
        return [solver for solver in SOLVERS.values() if not (secure and solver.seen)]
    items = [given] if isinstance(given, str | Solver) else list(given)
    chosen = [solver for solver in map(find_solver, items) if solver is not None]
    if not chosen or len(chosen) < len(items):
        raise InputError(
            f"solvers={given!r} must name solvers from this list: {', '.join(SOLVERS)}"
        )
    return chosen


def _names(names: Iterable[str] | str) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _recorded(model: FederatedPCA, sites: Any, *, secure: bool) -> Transcript:
    """Return the messages from a fit; refuse a question that no attack covers."""
    with warnings.catch_warnings():
        # a run that stops early reveals no more than a complete run
        warnings.simplefilter("ignore", ConvergenceWarning)
        run = record(model, sites, secure=secure)
    for exchange in run.rounds.values():
        if exchange.question not in (*TELLING_QUESTIONS, *BESIDE):
            raise InputError(
                f"no attack covers the question {exchange.question!r}; add one to "
                "fedpca.audit.attacks"
            )
    return run
