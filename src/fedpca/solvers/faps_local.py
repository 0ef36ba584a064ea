"""What a site does in FAPS: its copy of the subspace, its local problem, its penalty.

With ``C = A_i'A_i``, a copy X has the multiplier ``Lambda = X W' + W X'``, ``W = -(I - X X') C X``. The
local problem is to find the leading eigenvectors of ``H = C + Lambda + beta Z Z'``, and what leaves the
site is ``Q Z``, ``Q = beta X X' - Lambda``. None of these d x d matrices is formed.

Source: Wang, Liu and Zhang, "Seeking consensus on subspaces in federated principal component
analysis" (2023); numbers in brackets are its equations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedpca.linalg import orth, outside
from fedpca.message import Array

GROWTH, ENOUGH = 0.5, 0.01  # theta and mu of (25)
LARGEST_PENALTY = 2.0  # share of ||A_i||_2^2 beyond which beta_i does not grow
SUFFICIENT, DECREASE = 0.1, 0.5  # c_1 of (13), with c_1' = 1, and delta_i of (14)
CHANGE = 1e-2  # epsilon_x of (26)
MOST_LOCAL_STEPS = 50
BY_CONDITION = {"decrease": 0, "change": -1}  # in the place of a number of local steps

Product = Callable[[Array], Array]  # C times a block


class Copy(NamedTuple):
    """A site's own copy of the subspace, with what its multiplier is made of."""

    X: Array  # (d, k), orthonormal
    W: Array  # (d, k), (16)
    within: Array  # (k, k), X'CX

    @classmethod
    def at(cls, X: Array, CX: Array) -> Copy:
        """The copy X, of which the product with C is known."""
        within = X.T @ CX
        return cls(X, X @ within - CX, within)

    @property
    def CX(self) -> Array:
        """C times X, from what is kept."""
        return np.asarray(self.X @ self.within - self.W)

    def multiplier_times(self, V: Array) -> Array:
        """Lambda V, (15)."""
        return np.asarray(self.X @ (self.W.T @ V) + self.W @ (self.X.T @ V))

    def distance(self, Z: Array) -> float:
        """``||X X' - Z Z'||_F``, without the cancellation that this would have."""
        return float(np.sqrt(2) * np.linalg.norm(outside(Z, self.X)))


def solve_locally(
    times_C: Product, copy: Copy, Z: Array, beta: float, norm: float, steps: int
) -> Copy:
    """A better solution of the local problem (11), by so many steps or up to a condition.

    ``norm`` is ||A_i||_2^2. Conditions are (13) with (14), or (26), in which subspaces are compared: a
    basis is free to turn.
    """

    def times_H(X: Array, CX: Array) -> Array:
        return np.asarray(CX + copy.multiplier_times(X) + beta * Z @ (Z.T @ X))

    X, CX = copy.X, copy.CX
    HX = times_H(X, CX)
    value, violation = _objective(X, HX), _violation(X, HX)
    due = SUFFICIENT / max(norm + beta, np.finfo(float).tiny) * violation**2
    for _ in range(steps if steps > 0 else MOST_LOCAL_STEPS):
        before, X = X, orth(HX)
        CX = times_C(X)
        HX = times_H(X, CX)
        is_enough = False
        if steps == BY_CONDITION["decrease"]:
            is_enough = _violation(X, HX) <= DECREASE * violation and (
                value - _objective(X, HX) >= due
            )
        elif steps == BY_CONDITION["change"]:
            is_enough = np.linalg.norm(outside(before, X)) <= CHANGE * np.sqrt(X.shape[1])
        if is_enough:
            break
    return Copy.at(X, CX)


def masked_product(copy: Copy, Z: Array, beta: float) -> Array:
    """``Y = Q Z``, (18) and (19): what a site sends in a round, beside the number of the stop rule."""
    return np.asarray(beta * copy.X @ (copy.X.T @ Z) - copy.multiplier_times(Z))


def grown(beta: float, before: float, distance: float, norm: float) -> float:
    """The penalty after (25): larger where the copy has not come nearer to Z.

    ``before`` is its distance at the time of the last look.
    """
    if before > (1 + ENOUGH) * distance:
        return beta
    return max(beta, min((1 + GROWTH) * beta, LARGEST_PENALTY * norm))


def largest_eigenvalue(times_C: Product, copy: Copy) -> float:
    """||A_i||_2^2, nearly: power steps from a copy until one adds no more than a hundredth."""
    largest = 0.0
    for _ in range(MOST_LOCAL_STEPS):
        before, largest = largest, float(np.linalg.eigvalsh(copy.within)[-1])
        if largest <= (1 + CHANGE) * before:
            break
        X = orth(copy.CX)
        copy = Copy.at(X, times_C(X))
    return max(largest, 0.0)


def _objective(X: Array, HX: Array) -> float:
    return -float(np.vdot(X, HX)) / 2


def _violation(X: Array, HX: Array) -> float:
    return float(np.linalg.norm(outside(X, HX)))
