"""One file a method, the source cited on top, and the catalogue of them all."""

from __future__ import annotations

from fedpca.solvers.covariance import covariance
from fedpca.solvers.lanczos import lanczos
from fedpca.solvers.solution import Solution, Solver
from fedpca.solvers.subspace_iteration import subspace_iteration

SOLVERS: dict[str, Solver] = {
    "covariance": covariance,
    "lanczos": lanczos,
    "power": subspace_iteration,
}

__all__ = ["SOLVERS", "Solution", "Solver"]
