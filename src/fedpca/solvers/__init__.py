"""Solvers: the coordinator's whole program for each method, with the questions that it asks sites.

Start with `contract`, which says what a solver takes and returns, and `catalogue`, which lists all of
them. `standardize` holds the rounds before every solver. `pca` is the program around the solvers of
`exact` and `one_round`. `personalized` and `robust` are families of their own.
"""

from fedpca.solvers.catalogue import SOLVERS
from fedpca.solvers.contract import Problem, Solution, Solver
from fedpca.solvers.exact.covariance import Covariance
from fedpca.solvers.exact.faps import Faps
from fedpca.solvers.exact.lanczos import Lanczos
from fedpca.solvers.exact.local_power import LocalPower
from fedpca.solvers.exact.subspace_iteration import SubspaceIteration
from fedpca.solvers.one_round.average import Average
from fedpca.solvers.one_round.merge import Merge
from fedpca.solvers.personalized.gradient import Polar, Stiefel
from fedpca.solvers.personalized.power import Power
from fedpca.solvers.robust.hard import Threshold
from fedpca.solvers.robust.soft import Dcf, LeastSquares

__all__ = [
    "SOLVERS",
    "Average",
    "Covariance",
    "Dcf",
    "Faps",
    "Lanczos",
    "LeastSquares",
    "LocalPower",
    "Merge",
    "Polar",
    "Power",
    "Problem",
    "Solution",
    "Solver",
    "Stiefel",
    "SubspaceIteration",
    "Threshold",
]
