"""One file a method, the source cited on top, and the catalogue of them all."""

from __future__ import annotations

from fedpca.solvers.averaging import average_subspaces
from fedpca.solvers.covariance import summed_covariance
from fedpca.solvers.faps import seek_consensus
from fedpca.solvers.lanczos import block_lanczos
from fedpca.solvers.local_power import iterate_locally
from fedpca.solvers.merging import merge_about_mean
from fedpca.solvers.solution import Solution, Solver
from fedpca.solvers.subspace_iteration import iterate_subspace

SOLVERS: dict[str, Solver] = {
    "covariance": summed_covariance,
    "lanczos": block_lanczos,
    "power": iterate_subspace,
    "local-power": iterate_locally,
    "faps": seek_consensus,
    "merge": merge_about_mean,
    "average": average_subspaces,
}

# what users may tell one solver and not the others
OPTIONS: dict[str, tuple[str, ...]] = {
    "local-power": ("local_steps", "halve_every"),
    "faps": ("local_steps", "penalty", "stop"),
    "merge": ("fan_in", "site_components", "own_means"),
    "average": ("site_components", "weights"),
}

__all__ = ["OPTIONS", "SOLVERS", "Solution", "Solver"]
