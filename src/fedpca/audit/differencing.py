"""Guess from a fit whether one person is in the rows, with attacks that only noise can stop.

    guess that the person is there if  sum_j (x_j - a_j)^2 / s_j  <  sum_j (x_j - b_j)^2 / s_j

Here, x are the totals that the coordinator sees, and s are the variances of the noise in them.
Without noise, the totals would be a if the person is there, and b if not. No guess from the totals
is better (Neyman and Pearson). Two attackers make this guess:

- "flag": one column is zero for all but one patient. The attacker looks only at this column's totals.
- "added": a patient was added between two fits. The attacker knows all other rows, and subtracts them.

Without noise, both attackers are always right. With noise, no attacker's share of right guesses exceeds
``F(mu / 2)``, whatever else the attacker knows, where F is the normal distribution (Dong, Roth, and Su,
"Gaussian differential privacy", 2022). Half of all guesses are right by chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.coordinator.warm_start import WarmStart
from fedpca.errors import InputError
from fedpca.privacy.gaussian import Privacy
from fedpca.protocol.plan import PRIVATE, RunPlan
from fedpca.rows.bounded import RADIUS, on_grid
from fedpca.solvers.private.at_site import (
    AROUND_TIMES,
    COUNT_UNIT,
    noisy_count_and_sum,
    noisy_scatter,
    scatter_variance,
    sum_variance,
)

DIFFERENCING_EPSILONS = (math.inf, 10.0, 1.0, 0.1)  # an infinite epsilon means a fit without noise
FLAG, ADDED = "flag", "added"


@dataclass(frozen=True)
class Guesses:
    """How often an attacker correctly guesses whether one person is in the rows."""

    attack: str  # "flag" or "added"
    epsilon: float  # infinite for a fit without noise
    right: float  # share of right guesses; 0.5 is chance
    most: float  # largest share that any attacker can reach


def guess_person(
    rows: Array,
    row_bound: float,
    *,
    epsilons: Iterable[float] = DIFFERENCING_EPSILONS,
    delta: float = 1e-6,
    n_trials: int = 200,
    seed: int = 0,
) -> list[Guesses]:
    """Fit many times with or without one person, and return how often each attack is right.

    Nothing leaves this machine. Here, one site holds all rows. That makes no difference to the attack:
    with secure sums, the coordinator sees only the total of all sites, with the same noise.

    Parameters
    ----------
    rows : array of shape (n_rows, n_features)
        The rows, of which the last is the patient's. The function adds a column that is 1 for the
        patient and 0 for everyone else.
    row_bound, delta : float
        As for `Privacy`.
    epsilons : iterable of float
        The values of epsilon to attack; an infinite one means fits without noise.
    n_trials : int
        The number of fits for each epsilon; the person is in the rows of about half of them.
    seed : int
        The seed that decides in which fits the person is there. The noise does not depend on it.
    """
    if np.ndim(rows) != 2 or len(rows) < 2 or n_trials < 1:
        raise InputError(
            "rows must be a table of at least two rows, and n_trials must be at least 1"
        )
    flags = np.zeros((len(rows), 1))
    flags[-1] = 1.0
    table = np.hstack([rows, flags])
    rng = np.random.default_rng(seed)
    found = []
    for epsilon in epsilons:
        privacy = Privacy(epsilon, delta, row_bound)
        n_right = dict.fromkeys((FLAG, ADDED), 0)
        for _ in range(n_trials):
            is_there = bool(rng.integers(2))
            told = _Told.by(table if is_there else table[:-1], privacy)
            for attack in n_right:
                n_right[attack] += told.guess(table, attack) == is_there
        most = float(ndtr(privacy.mu / 2))
        found += [Guesses(name, epsilon, n / n_trials, most) for name, n in n_right.items()]
    return sorted(found, key=lambda each: each.attack, reverse=True)


@dataclass(frozen=True)
class _Told:
    """The totals that a coordinator sees in a private fit."""

    privacy: Privacy
    plan: RunPlan
    sums: Array  # (1 + d,), the count first
    triangle: Array

    @classmethod
    def by(cls, rows: Array, privacy: Privacy) -> _Told:
        """Fit rows, and return the totals."""
        fed = Federation.local([rows])

        def program(fed: Federation, _: WarmStart | None) -> tuple[Array, Array]:
            told = fed.sum(noisy_count_and_sum, features=np.empty(0, np.uint8))
            sums = np.append(told["n"], told["total"])
            mean = mean_of(sums, privacy)
            return sums, fed.sum(noisy_scatter, mean=mean)["triangle"]

        identity = {"program": "FederatedPCA", "privacy": {PRIVATE: privacy.to_plain()}}
        sums, triangle = fed.run(program, identity=identity, seed=0)
        return cls(privacy, fed.plan, sums, triangle)

    def guess(self, table: Array, attack: str) -> bool:
        """Return whether the person in the last row seems to be there."""
        mean = mean_of(self.sums, self.privacy)
        seen = np.concatenate([self.sums, self.triangle]).astype(np.float64)
        with_person, without = (
            self._exact(each, mean).astype(np.float64) for each in (table, table[:-1])
        )
        weights = self._weights(table.shape[1])
        if attack == FLAG:
            at = [table.shape[1], len(seen) - 1]  # the flag's own total and its sum of squares
            seen, with_person, without, weights = (
                each[at] for each in (seen, with_person, without, weights)
            )
        closer = ((seen - without) ** 2 - (seen - with_person) ** 2) * weights
        return bool(closer.sum() > 0)

    def _exact(self, rows: Array, mean: Array) -> Array:
        """Return the same totals without noise, which an attacker who knows the rows can compute."""
        d = rows.shape[1]
        near = on_grid(rows, np.zeros(d), AROUND_TIMES * self.privacy.row_bound)
        about = on_grid(rows, mean, self.privacy.row_bound)
        sums = np.append(COUNT_UNIT * len(rows), near.sum(axis=0))
        return np.concatenate([sums, (about.T @ about)[np.tril_indices(d)]])

    def _weights(self, d: int) -> Array:
        """Return the inverse of each total's variance, or ones if there is no noise."""
        first, second = sum_variance(self.plan), scatter_variance(self.plan)
        if not first:
            return np.ones(1 + d + d * (d + 1) // 2)
        triangle = np.full(d * (d + 1) // 2, 2.0 / second)
        triangle[np.cumsum(np.arange(1, d + 1)) - 1] = 1.0 / second
        return np.concatenate([np.full(1 + d, 1.0 / first), triangle])


def mean_of(sums: Array, privacy: Privacy) -> Array:
    """Return the mean that a fit computes from its first totals."""
    n = max(float(sums[0]) / COUNT_UNIT, 2.0)
    return np.asarray(sums[1:] * (AROUND_TIMES * privacy.row_bound / RADIUS / n))
