"""One file a method, the source cited on top, and the catalogue of them all."""

from __future__ import annotations

from fedpca.solvers.covariance import summed_covariance
from fedpca.solvers.lanczos import block_lanczos
from fedpca.solvers.solution import Solution, Solver
from fedpca.solvers.subspace_iteration import iterate_subspace

SOLVERS: dict[str, Solver] = {
    "covariance": summed_covariance,
    "lanczos": block_lanczos,
    "power": iterate_subspace,
}

__all__ = ["SOLVERS", "Solution", "Solver"]
