"""The leak lab: how well each site's covariance can be worked out from what a solver sends.

::

    relative error = ||C^ - C||_F / ||C||_F,   C = A'A of one site's rows about the common mean

after each round, for every site, solver and listener, by the best attack that is known here. Nothing
is proved: a better attack may come. What the attacks find is certainly revealed.

>>> import numpy as np
>>> from fedpca.privacy.leakage import leakage
>>> rng = np.random.default_rng(0)
>>> sites = {"north": rng.normal(size=(50, 6)), "south": rng.normal(size=(40, 6)) * [3, 1, 1, 1, 1, 1]}
>>> found = leakage(sites, 2, solvers=["power"])
>>> found.best("power", "seen", "south").error < 1e-6  # each site's answers tell all
True
>>> found.best("power", "summed", "south").error > 0.1  # their sums do not
True
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from fedpca.errors import InputError
from fedpca.estimators import FederatedPCA
from fedpca.linalg import unpack_triangle
from fedpca.message import Array
from fedpca.privacy.attacks import ATTACKS, ROUNDS, View, after
from fedpca.privacy.transcript import Transcript, record
from fedpca.rows import open_rows
from fedpca.solvers import SOLVERS

LISTENERS = {
    "seen": "the coordinator, or all other sites together, hears each answer",
    "summed": "the coordinator hears only sums over sites, and what is gathered",
    "published": "an outsider has the model",
}
MOST_FEATURES = 1000  # estimates are d x d, one for each attack, round and site
TOLERATED = 0.1  # relative error to which an eigenpair must be known to count as exposed


class Exposure(NamedTuple):
    """What one attack finds of one site after so many rounds."""

    solver: str
    how: str  # a key of LISTENERS
    site: str
    attack: str
    round: int
    error: float  # relative, in Frobenius norm
    exposed: float  # share of the site's variance along eigenvectors that the attack reproduces


@dataclass(frozen=True)
class Leakage:
    """All that the attacks found.

    ``guesses`` are the errors of n_i / n of the whole covariance, over the sites that do not collude:
    what is known of a site to whoever knows that.
    """

    exposures: tuple[Exposure, ...]
    guesses: dict[str, float]

    @property
    def solvers(self) -> tuple[str, ...]:
        """Those that were attacked."""
        return tuple(dict.fromkeys(e.solver for e in self.exposures))

    @property
    def sites(self) -> tuple[str, ...]:
        """Those that were attacked."""
        return tuple(self.guesses)

    def of(self, solver: str, how: str, site: str | None = None) -> list[Exposure]:
        """The exposures of a solver to a listener, of all sites or of one."""
        return [
            e
            for e in self.exposures
            if e.solver == solver and e.how == how and site in (None, e.site)
        ]

    def best(
        self, solver: str, how: str, site: str | None = None, rounds: int | None = None
    ) -> Exposure:
        """The attack of the smallest error after all rounds, or after so many.

        One that was nearer by chance at an earlier round does not count: nobody could have known.
        """
        found = self.of(solver, how, site)
        within = [e for e in found if rounds is None or e.round <= rounds]
        last = max(e.round for e in within)
        return min((e for e in within if e.round == last), key=lambda e: e.error)

    def curve(self, solver: str, how: str, site: str) -> list[tuple[int, float]]:
        """The smallest error after each round that was looked at."""
        rounds = sorted({e.round for e in self.of(solver, how, site)})
        return [(r, self.best(solver, how, site, r).error) for r in rounds]


def leakage(
    sites: Any,
    n_components: Any,
    *,
    solvers: Iterable[str] | None = None,
    refits: int = 5,
    colluding: Collection[str] = (),
    random_state: int = 0,
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
        Of the catalogue; all of it by default.
    refits : int
        How often the fit is repeated from another start, for the attack that uses this.
    colluding : collection of str
        Sites that tell the coordinator their own parts of every sum; the others are attacked.
    random_state : int
        Seed of the first fit's start; those of the refits follow.
    **parameters
        Of `FederatedPCA`: ``scale``, ``tol``, ``max_rounds``.
    """
    solvers = list(SOLVERS) if solvers is None else list(solvers)
    if unknown := set(solvers) - set(SOLVERS):
        raise InputError(f"no solver {sorted(unknown)}; there are {', '.join(SOLVERS)}")
    if refits < 0:
        raise InputError(f"refits={refits} must be 0 or more")
    _refuse_large(sites)

    def runs_of(solver: str, n: int) -> list[Transcript]:
        return [
            _recorded(
                FederatedPCA(
                    n_components, solver=solver, random_state=random_state + i, **parameters
                ),
                sites,
            )
            for i in range(n)
        ]

    truth, rows = _covariances(runs_of("covariance", 1)[0])
    if unknown := set(colluding) - set(truth):
        raise InputError(f"no site {sorted(unknown)}; there are {', '.join(truth)}")
    honest = {site: C for site, C in truth.items() if site not in colluding}
    if not any(C.any() for C in honest.values()):
        raise InputError("no site with rows that vary is left to be attacked")
    n, whole = sum(rows[site] for site in honest), np.sum(list(honest.values()), axis=0)
    exposures: list[Exposure] = []
    guesses: dict[str, float] = {}
    for solver in solvers:
        runs = runs_of(solver, 1 + refits)
        for site, C in honest.items():
            if not C.any():
                continue
            target = Target.of(C)
            guesses[site] = target.error(rows[site] / n * whole)
            for how in LISTENERS:
                views = [run.heard(site, how, rows, honest) for run in runs]
                exposures += [Exposure(solver, how, site, *f) for f in _attacked(views, target)]
    return Leakage(tuple(exposures), guesses)


class Target(NamedTuple):
    """What an attack is after, and its eigenpairs."""

    C: Array
    values: Array
    vectors: Array

    @classmethod
    def of(cls, C: Array) -> Target:
        return cls(C, *np.linalg.eigh(C))

    def error(self, estimate: Array) -> float:
        """Relative, in Frobenius norm."""
        return float(np.linalg.norm(estimate - self.C) / np.linalg.norm(self.C))

    def exposed(self, estimate: Array) -> float:
        """The share of the trace along eigenvectors that are those of the estimate too, nearly."""
        values = np.maximum(self.values, 0.0)
        off = np.linalg.norm(estimate @ self.vectors - self.vectors * values, axis=0)
        return float(values[off <= TOLERATED * values].sum() / values.sum())


def _attacked(views: Sequence[View], target: Target) -> Iterator[tuple[str, int, float, float]]:
    last = sum(heard.question in ROUNDS for heard in views[0])
    for n_rounds in rounds_to_look_at(max(last, 1)):
        runs = [after(view, n_rounds) for view in views]
        for name, attack in ATTACKS.items():
            estimate = attack(runs)
            if estimate is not None:
                near = _without_negative(estimate)
                yield name, n_rounds, target.error(near), target.exposed(near)


def rounds_to_look_at(last: int) -> list[int]:
    """All rounds up to five, then each a half more than the one before, and the last."""
    rounds = [1]
    while rounds[-1] < last:
        rounds.append(rounds[-1] + max(1, rounds[-1] // 2 if rounds[-1] >= 5 else 1))
    return [*rounds[:-1], last] if len(rounds) > 1 else rounds


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


def _refuse_large(sites: Any) -> None:
    """Before anything is fitted."""
    for rows in sites.values() if isinstance(sites, Mapping) else sites:
        d = open_rows(rows).n_features
        if d > MOST_FEATURES:
            raise InputError(
                f"{d} features exceed the {MOST_FEATURES} of which estimates are feasible; audit the "
                "same rows with fewer columns"
            )


def _recorded(model: FederatedPCA, sites: Any) -> Transcript:
    with warnings.catch_warnings():
        # a run that was cut short reveals no more than a whole one
        warnings.simplefilter("ignore", ConvergenceWarning)
        return record(model, sites)
