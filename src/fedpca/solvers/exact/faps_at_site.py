"""A site's copy of the subspace in FAPS: the local problem, the mask, and the penalty.

    Lambda = X W' + W X',   W = -(I - X X') C X        the copy X has this multiplier
    H = C + Lambda + beta Z Z'                         its leading eigenvectors are the next copy
    Q = beta X X' - Lambda                             the mask of the products that a site sends

Nothing here leaves the site; `fedpca.solvers.exact.faps` has the questions. Numbers in parentheses
refer to the equations of the paper named there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedpca.arrays import Array
from fedpca.linalg.dense import orth, outside

PENALTY_GROWTH = 0.5  # theta in (25)
MIN_APPROACH = 0.01  # mu in (25)
MAX_PENALTY = 2.0  # beta_i does not grow beyond this share of ||A_i||_2^2
SUFFICIENT = 0.1  # c_1 in (13), with c_1' = 1
DECREASE = 0.5  # delta_i in (14)
MAX_CHANGE = 1e-2  # epsilon_x in (26)
MAX_LOCAL_STEPS = 50  # most local steps if a condition ends them
BY_CONDITION = {"decrease": 0, "change": -1}  # codes sent instead of a number of local steps

Product = Callable[[Array], Array]  # C times a block


class Copy(NamedTuple):
    """A site's copy of the subspace and the matrices that make up its multiplier."""

    X: Array  # (d, k), orthonormal
    W: Array  # (d, k), (16)
    within: Array  # (k, k), X'CX

    @classmethod
    def at(cls, X: Array, CX: Array) -> Copy:
        """Make a copy from X and its product with C."""
        within = X.T @ CX
        return cls(X, X @ within - CX, within)

    @property
    def CX(self) -> Array:
        """Return C times X without computing another product with C."""
        return np.asarray(self.X @ self.within - self.W)

    def multiplier_times(self, V: Array) -> Array:
        """Return Lambda V, (15)."""
        return np.asarray(self.X @ (self.W.T @ V) + self.W @ (self.X.T @ V))

    def distance(self, Z: Array) -> float:
        """Return ``||X X' - Z Z'||_F``, computed without cancellation."""
        return float(np.sqrt(2) * np.linalg.norm(outside(Z, self.X)))


def solve_locally(
    times_C: Product, copy: Copy, Z: Array, beta: float, norm: float, steps: int
) -> Copy:
    """Improve the solution of the local problem (11) by ``steps`` steps.

    ``norm`` is ||A_i||_2^2. If ``steps`` is not positive, it selects a condition that ends the steps:
    either (13) and (14) together, or (26). For (26), subspaces are compared, since a basis is free to
    rotate.
    """

    def times_H(X: Array, CX: Array) -> Array:
        return np.asarray(CX + copy.multiplier_times(X) + beta * Z @ (Z.T @ X))

    X, CX = copy.X, copy.CX
    HX = times_H(X, CX)
    value, violation = _objective(X, HX), _violation(X, HX)
    required = SUFFICIENT / max(norm + beta, np.finfo(float).tiny) * violation**2
    for _ in range(steps if steps > 0 else MAX_LOCAL_STEPS):
        before, X = X, orth(HX)
        CX = times_C(X)
        HX = times_H(X, CX)
        is_enough = False
        if steps == BY_CONDITION["decrease"]:
            is_enough = _violation(X, HX) <= DECREASE * violation and (
                value - _objective(X, HX) >= required
            )
        elif steps == BY_CONDITION["change"]:
            is_enough = np.linalg.norm(outside(before, X)) <= MAX_CHANGE * np.sqrt(X.shape[1])
        if is_enough:
            break
    return Copy.at(X, CX)


def masked_product(copy: Copy, Z: Array, beta: float) -> Array:
    """Return ``Y = Q Z``, (18) and (19): the masked product that a site sends in a round."""
    return np.asarray(beta * copy.X @ (copy.X.T @ Z) - copy.multiplier_times(Z))


def grown(beta: float, before: float, distance: float, norm: float) -> float:
    """Return the penalty according to rule (25): it grows if the copy has not moved closer to Z.

    ``distance`` is the distance from the copy to Z now, and ``before`` is the distance at the last
    check.
    """
    if before > (1 + MIN_APPROACH) * distance:
        return beta
    return max(beta, min((1 + PENALTY_GROWTH) * beta, MAX_PENALTY * norm))


def largest_eigenvalue(times_C: Product, copy: Copy) -> float:
    """Estimate ||A_i||_2^2 by power steps from a copy until a step adds at most one percent."""
    largest = 0.0
    for _ in range(MAX_LOCAL_STEPS):
        before, largest = largest, float(np.linalg.eigvalsh(copy.within)[-1])
        if largest <= (1 + MAX_CHANGE) * before:
            break
        X = orth(copy.CX)
        copy = Copy.at(X, times_C(X))
    return max(largest, 0.0)


def _objective(X: Array, HX: Array) -> float:
    return -float(np.vdot(X, HX)) / 2


def _violation(X: Array, HX: Array) -> float:
    return float(np.linalg.norm(outside(X, HX)))
