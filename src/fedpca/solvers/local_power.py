"""LocalPower: several power steps at each site between rounds.

    X_i <- orth(C_i X_i), q - 1 times from X_i = Z;   Z <- orth(sum_i C_i X_i D_i),   C_i = A_i'A_i,

with D_i the rotation that brings X_i nearest to Z (orthogonal Procrustes), since a basis turns on its
own way at each site. Where sites are alike a round does the work of q rounds of subspace iteration.
Where they are not, it leads to a subspace beside the right one; so q is halved every few rounds, and
with q = 1 it is subspace iteration, which ends at the right one.

Source: Li, Wang, Chen and Zhang, "Communication-efficient distributed SVD via local power iterations"
(2021). There bases are brought near to that of one of the sites, which the others have to see; the Z
that all of them know serves as well. Halving in every round, as in Wang, Liu and Zhang (2023), saves
next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice, repeat
from typing import Any

import numpy as np

from fedpca.federation import Federation
from fedpca.linalg import orth, outside, procrustes
from fedpca.message import Array
from fedpca.moments import Moments, settle_frame
from fedpca.planner import EXPECTED_ROUNDS
from fedpca.question import question
from fedpca.rank import RankRule
from fedpca.solvers.solution import Solution, scaled, starting_block
from fedpca.solvers.subspace_iteration import TIMES_LANCZOS, iterate

LOCAL_STEPS = 8  # q at the start
HALVE_EVERY = 10  # rounds


@question(asks={"Z": "float64 d k", "steps": "int64"}, answers={"Y": "float64 d k"})
def local_power_steps(site: Any, Z: Array, steps: Array) -> dict[str, Array]:
    """The last of so many local power steps, in the basis that is nearest to Z."""
    X = Z
    for _ in range(int(steps) - 1):
        X = orth(site.framed.gram_times(X))
    return {"Y": site.framed.gram_times(X @ procrustes(X, Z))}


def iterate_locally(
    fed: Federation,
    known: Moments,
    rank: RankRule,
    *,
    start: Array | None,
    tol: float,
    max_rounds: int,
    local_steps: int | None = None,
    halve_every: int = HALVE_EVERY,
) -> Solution:
    """The leading eigenvectors of A'A, to a scaled residual ``||R||_F / trace(A'A)`` of ``tol``.

    The residual is known once a round has one step; before that, what ``Y`` has outside Z stands for
    it. Where that is as small, more local steps lead nowhere.
    """
    p, steps = rank.first_look, local_steps or LOCAL_STEPS
    expected = steps * halve_every + TIMES_LANCZOS * EXPECTED_ROUNDS
    energy = settle_frame(fed, known, p * min(steps * max_rounds, expected))
    Z = starting_block(fed, known.d, p, start)
    done = 0
    for q in islice(local_steps_of_rounds(steps, halve_every), max_rounds - 1):
        Y = fed.sum(local_power_steps, Z=Z, steps=np.int64(q))["Y"]
        done += 1
        left_to_do = scaled(float(np.linalg.norm(outside(Z, Y))), energy)
        fed.report(left_to_do, partial(np.asarray, Z))
        Z = orth(Y)
        if left_to_do <= tol:
            break
    return iterate(fed, known, rank, Z, energy, tol=tol, max_rounds=max_rounds - done)


def local_steps_of_rounds(steps: int, halve_every: int) -> Iterator[int]:
    """How many local steps each round takes, until it would be one."""
    while steps > 1:
        yield from repeat(steps, halve_every)
        steps //= 2
