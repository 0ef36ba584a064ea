"""What attacks came to, and by what they are judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedpca.errors import InputError
from fedpca.message import Array
from fedpca.privacy.transcript import LISTENERS

TOLERATED = 0.1  # relative error to which an eigenpair must be known to count as exposed


class Exposure(NamedTuple):
    """What one attack finds of one site after so many rounds."""

    solver: str
    listener: str  # of LISTENERS
    site: str
    attack: str  # of ATTACKS
    round: int
    error: float  # relative, in Frobenius norm
    exposed: float  # share of the site's variance along eigenvectors that the attack reproduces


@dataclass(frozen=True)
class Leakage:
    """All that the attacks found.

    ``guesses`` are the errors of the better of two guesses for which no message of the solver is
    needed: the site's share, by its rows, of the covariance of all sites that do not collude, and of
    what the published model says.
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

    def of(self, solver: str, listener: str, site: str) -> list[Exposure]:
        """The exposures of one site by a solver to a listener."""
        asked = (solver, listener, site)
        for name, known in zip(asked, (self.solvers, LISTENERS, self.sites), strict=True):
            if name not in known:
                raise InputError(f"{name!r} was not looked at; there are {', '.join(known)}")
        return [e for e in self.exposures if (e.solver, e.listener, e.site) == asked]

    def best(self, solver: str, listener: str, site: str, rounds: int | None = None) -> Exposure:
        """The attack of the smallest error after all rounds, or after so many.

        One that was nearer by chance at an earlier round does not count: nobody could have known.
        """
        found = self.of(solver, listener, site)
        last = max(e.round for e in found if rounds is None or e.round <= max(rounds, 1))
        return min((e for e in found if e.round == last), key=lambda e: e.error)

    def curve(self, solver: str, listener: str, site: str) -> list[tuple[int, float]]:
        """The smallest error after each round that was looked at."""
        rounds = sorted({e.round for e in self.of(solver, listener, site)})
        return [(r, self.best(solver, listener, site, r).error) for r in rounds]


class Target(NamedTuple):
    """What an attack is after, and its eigenpairs."""

    C: Array
    values: Array
    vectors: Array

    @classmethod
    def of(cls, C: Array) -> Target:
        """The target C."""
        return cls(C, *np.linalg.eigh(C))

    def error(self, estimate: Array) -> float:
        """Relative, in Frobenius norm."""
        return float(np.linalg.norm(estimate - self.C) / np.linalg.norm(self.C))

    def exposed(self, estimate: Array) -> float:
        """The share of the trace along eigenvectors that are those of the estimate too, nearly."""
        values = np.maximum(self.values, 0.0)
        off = np.linalg.norm(estimate @ self.vectors - self.vectors * values, axis=0)
        return float(values[off <= TOLERATED * values].sum() / values.sum())
