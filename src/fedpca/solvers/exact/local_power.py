"""LocalPower: each site takes several power steps between rounds.

    X_i <- orth(C_i X_i), q - 1 times from X_i = Z;   Z <- orth(sum_i C_i X_i D_i),   C_i = A_i'A_i

D_i is the rotation that brings X_i closest to Z (orthogonal Procrustes). It is needed because each
site's basis rotates differently. If sites are similar, a round does the work of q rounds of subspace
iteration. If they are not, the method leads to a wrong subspace near the right one. So q is halved
every few rounds. With q = 1, the method is subspace iteration, which ends at the right subspace.

Source: Li, Wang, Chen and Zhang, "Communication-efficient distributed SVD via local power iterations"
(2021). In the paper, bases are rotated toward one site's basis, which the other sites have to see. Here
they are rotated toward Z, which all sites already have, and this works as well. Halving in every round,
as in Wang, Liu and Zhang (2023), saves almost nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.coordinator.federation import Federation
from fedpca.linalg.dense import orth, outside, procrustes
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.protocol.script import END, Script, repeat, then
from fedpca.solvers.contract import (
    Problem,
    Solution,
    after_moments,
    check_whole,
    columns_asked,
    covariance_product,
    moments_and_rank,
    scaled,
    starting_block,
)
from fedpca.solvers.costs import (
    LANCZOS_ROUNDS,
)
from fedpca.solvers.exact.subspace_iteration import (
    TIMES_LANCZOS,
    SubspaceIteration,
    iterate,
)
from fedpca.solvers.sign_flips import flips_order
from fedpca.solvers.standardize import standardize, standardize_sites

if TYPE_CHECKING:
    from fedpca.site.site import Site

MAX_LOCAL_STEPS = 1000  # most local steps at a site in a round


@dataclass(frozen=True)
class LocalPower:
    """Let sites take several local power steps between rounds, with fewer steps in later rounds.

    Parameters
    ----------
    local_steps : int
        The number of power steps that a site takes in each of the first rounds.
    halve_every : int
        The number of rounds after which the number of steps is halved.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca import FederatedPCA
    >>> from fedpca.solvers import LocalPower
    >>> rows = np.random.default_rng(0).normal(size=(90, 6)) * [4, 3, 1, 1, 1, 1]
    >>> sites = [rows[:50], rows[50:]]
    >>> pca = FederatedPCA(2, solver=LocalPower(local_steps=4), random_state=0).fit(sites)
    >>> pca.run_.solver, pca.run_.stop_reason
    ('local-power', 'converged')
    """

    name: ClassVar[str] = "local-power"
    guarantee: ClassVar[str] = "exact"
    seen: ClassVar[tuple[str, ...]] = ()

    local_steps: int = 8
    halve_every: int = 10

    def __post_init__(self) -> None:
        check_whole("local_steps", self.local_steps, 1, MAX_LOCAL_STEPS)
        check_whole("halve_every", self.halve_every, 1, 2**31)

    @property
    def _n_halvings(self) -> int:
        """Return how many times the number of steps is halved until one step is left."""
        return self.local_steps.bit_length() - 1

    def script(self, plan: RunPlan) -> Script:
        plain, name = SubspaceIteration().script(plan), local_power_steps.name
        n_rounds = min(plan.max_rounds - 1, self._n_halvings * self.halve_every)
        steps = then(local_power_steps, repeat(local_power_steps, most=n_rounds - 1))
        rounds = then(covariance_product, flips_order(plan, covariance_product))
        return after_moments(
            plan,
            standardize,
            steps if n_rounds else END,
            rounds,
            most=plain.most,
            looks=plain.looks,
            values={f"{name}.steps": lambda asked: self.local_steps >> asked // self.halve_every},
            bounds={**plain.bounds, f"{name}.Z": columns_asked(plan)},
        )

    def solve(self, fed: Federation, problem: Problem) -> Solution:
        """Return the leading eigenvectors, within the tolerance unless rounding prevents it.

        The residual is known only in rounds with a single local step. In earlier rounds, the part of
        ``Y`` outside Z replaces it. Once that part is as small as ``tol``, further local steps gain
        nothing.
        """
        moments, rank = moments_and_rank(fed, problem)
        p, max_rounds = rank.first_look, problem.max_rounds
        expected = self.local_steps * self.halve_every + TIMES_LANCZOS * LANCZOS_ROUNDS
        energy = standardize_sites(fed, moments, p * min(self.local_steps * max_rounds, expected))
        Z = starting_block(fed, moments.d, p, problem.start)
        done = 0
        for q in itertools.islice(
            local_steps_of_rounds(self.local_steps, self.halve_every), max_rounds - 1
        ):
            Y = fed.sum(local_power_steps, Z=Z, steps=np.int64(q))["Y"]
            done += 1
            outside_share = scaled(float(np.linalg.norm(outside(Z, Y))), energy)
            fed.report(outside_share, partial(np.asarray, Z))
            Z = orth(Y)
            if outside_share <= problem.tol:
                break
        rest = replace(problem, max_rounds=max_rounds - done)
        return iterate(fed, moments, rank, Z, energy, rest)


@question(
    doing="improving the components",
    asks={"Z": "float64 d k, orthonormal", "steps": f"int64, 1..{MAX_LOCAL_STEPS}"},
    answers={"Y": "float64 d k, explained"},
    passes=5,
)
def local_power_steps(site: Site, Z: Array, steps: Array) -> Arrays:
    """Take local power steps and send the last product in the basis that is closest to Z."""
    X = Z
    for _ in range(int(steps) - 1):
        X = orth(site.standardized.gram_times(X))
    return {"Y": site.standardized.gram_times(X @ procrustes(X, Z))}


def local_steps_of_rounds(steps: int, halve_every: int) -> Iterator[int]:
    """Yield the number of local steps for each round, as long as it is more than one."""
    while steps > 1:
        yield from itertools.repeat(steps, halve_every)
        steps //= 2
