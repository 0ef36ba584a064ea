"""Solvers: the coordinator's complete program for each method, and the questions that it asks.

Start with `contract`, which defines what a solver takes and returns, and `catalogue`, which lists all
solvers. `common_features` and `standardize` contain the rounds that come before every solver. `pca` is
the program that runs the solvers in `exact` and `one_round`. `personalized` and `robust` are separate
families.

Importing this package registers every question that a site may be asked.
"""

from fedpca.solvers import pca as _pca  # noqa: F401  registers its questions
from fedpca.solvers import site_map as _site_map  # noqa: F401
from fedpca.solvers.catalogue import SOLVERS
from fedpca.solvers.contract import Problem, Solution, Solver
from fedpca.solvers.exact.covariance import Covariance
from fedpca.solvers.exact.faps import Faps
from fedpca.solvers.exact.lanczos import Lanczos
from fedpca.solvers.exact.local_power import LocalPower
from fedpca.solvers.exact.subspace_iteration import SubspaceIteration
from fedpca.solvers.exact.tsqr import Tsqr
from fedpca.solvers.one_round.average import Average
from fedpca.solvers.one_round.merge import Merge
from fedpca.solvers.personalized import program as _personalized  # noqa: F401
from fedpca.solvers.personalized.gradient import Polar, Stiefel
from fedpca.solvers.personalized.power import Power
from fedpca.solvers.robust import program as _robust  # noqa: F401
from fedpca.solvers.robust.dcf import Dcf
from fedpca.solvers.robust.hard import Threshold
from fedpca.solvers.robust.soft import LeastSquares
from fedpca.solvers.verification import verify_script as _verify_script  # noqa: F401

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
    "Tsqr",
]
