"""Hold the results of attacks, and measure how close the attacks come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.audit.transcript import LISTENERS
from fedpca.errors import InputError
from fedpca.facts import COUNT, SHARE, Column, Records, Sections, ValueKind

MAX_PAIR_ERROR = 0.1  # an eigenpair counts as exposed at or below this relative error


class Exposure(NamedTuple):
    """The result of one attack on one site after a given number of rounds."""

    solver: str
    listener: str  # a key of LISTENERS
    site: str
    attack: str  # a key of ATTACKS
    round: int
    error: float  # relative error in the Frobenius norm
    exposed: float  # fraction of the site's variance on eigenvectors that the attack recovers


@dataclass(frozen=True)
class Leakage:
    """The results of all attacks.

    ``guesses`` maps each site to the smaller error of two guesses that need no messages from the
    solver. Each guess multiplies a covariance by the site's share of the rows. The first guess uses the
    covariance of all sites that do not collude, and the second uses that of the published model.
    ``is_secure`` says whether the fits used secure sums.
    """

    exposures: tuple[Exposure, ...]
    guesses: dict[str, float]
    is_secure: bool = False

    @property
    def solvers(self) -> tuple[str, ...]:
        """Return the solvers that were attacked."""
        return tuple(dict.fromkeys(e.solver for e in self.exposures))

    @property
    def sites(self) -> tuple[str, ...]:
        """Return the sites that were attacked."""
        return tuple(self.guesses)

    def of(self, solver: str, listener: str, site: str) -> list[Exposure]:
        """Return one site's exposures to a listener, for one solver."""
        asked = (solver, listener, site)
        for name, audited in zip(asked, (self.solvers, LISTENERS, self.sites), strict=True):
            if name not in audited:
                raise InputError(f"{name!r} was not audited; use one of {', '.join(audited)}")
        return [e for e in self.exposures if (e.solver, e.listener, e.site) == asked]

    def best(self, solver: str, listener: str, site: str, rounds: int | None = None) -> Exposure:
        """Return the result with the smallest error after all rounds, or after ``rounds`` of them.

        An attack that happened to be closer in an earlier round does not count, because the attacker
        could not have known that.
        """
        exposures = self.of(solver, listener, site)
        last = max(e.round for e in exposures if rounds is None or e.round <= max(rounds, 1))
        return min((e for e in exposures if e.round == last), key=lambda e: e.error)

    def curve(self, solver: str, listener: str, site: str) -> list[tuple[int, float]]:
        """Return the smallest error after each round that was attacked."""
        rounds = sorted({e.round for e in self.of(solver, listener, site)})
        return [(r, self.best(solver, listener, site, r).error) for r in rounds]

    def facts(self, *, by_site: bool = False) -> Sections:
        """Return the best attack on the most exposed site, or on every site, for each listener."""
        rows = []
        for solver in self.solvers:
            for listener in HEARD:
                ends = [self.best(solver, listener, site) for site in self.sites]
                for end in ends if by_site else [min(ends, key=lambda e: e.error)]:
                    early = [self.best(solver, listener, end.site, n).error for n in (1, 10)]
                    best = (solver, listener, end.site, end.attack, *early)
                    rows.append((*best, end.error, end.round, end.exposed))
        masked = ", which is masked unless it is gathered" if self.is_secure else ""
        heard = [
            (f"'{name}' hears {LISTENERS[name]}{masked if name == 'seen' else ''}.",)
            for name in HEARD
        ]
        return (
            Records("exposures", EXPOSED, rows, PLOT_TITLE, ABOUT),
            Records("guesses", GUESS, [*self.guesses.items()], GUESSES, by_first=True),
            Records(None, (Column("text"),), heard, as_lines=True),
        )


def _error(error: float) -> str:
    return f"{error:.2f}" if error > 0.01 else f"{error:.0e}"


HEARD = ("seen", "summed")  # the listeners that a table shows
ESTIMATE_ERROR = ValueKind(_error)
PLOT_TITLE = "Relative error of the best estimate of a site's covariance, by rounds"
ABOUT = (
    "An error of 0 means that the covariance is known; 1 is no better than guessing zero. 'exposed' is "
    "the share of the site's variance on eigenvectors known to within 10%."
)
GUESSES = "Errors of guesses that use no messages"
GUESS = (Column("site"), Column("error", ESTIMATE_ERROR))
EXPOSED = (
    Column("solver"),
    Column("listener"),
    Column("site"),
    Column("attack", label="best attack"),
    Column("error_1", ESTIMATE_ERROR, "1"),
    Column("error_10", ESTIMATE_ERROR, "10"),
    Column("error", ESTIMATE_ERROR, "all"),
    Column("rounds", COUNT),
    Column("exposed", SHARE),
)


class Target(NamedTuple):
    """The covariance that an attack estimates, and its eigenpairs."""

    C: Array
    values: Array
    vectors: Array

    @classmethod
    def of(cls, C: Array) -> Target:
        """Return a target with this covariance."""
        return cls(C, *np.linalg.eigh(C))

    def error(self, estimate: Array) -> float:
        """Return the relative error of an estimate in the Frobenius norm."""
        return float(np.linalg.norm(estimate - self.C) / np.linalg.norm(self.C))

    def exposed(self, estimate: Array) -> float:
        """Return the fraction of the trace on eigenpairs that the estimate nearly reproduces."""
        values = np.maximum(self.values, 0.0)
        off = np.linalg.norm(estimate @ self.vectors - self.vectors * values, axis=0)
        return float(values[off <= MAX_PAIR_ERROR * values].sum() / values.sum())
