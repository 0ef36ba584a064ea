"""Solvers: the coordinator's complete program for each method, and the questions that it asks.

Start with `contract`, which defines what a solver takes and returns, and `catalogue`, which lists all
solvers. `common_features` and `standardize` contain the rounds that come before every solver. `pca` is
the program that runs the solvers in `exact` and `one_round`. `personalized` and `robust` are separate
families.

Importing this package registers every question that a site may be asked.
"""

from fedpca.solvers import pca as _pca  # noqa: F401  registers its questions
from fedpca.solvers import site_map as _site_map  # noqa: F401
from fedpca.solvers.catalogue import *  # noqa: F403  the solvers and their contract
from fedpca.solvers.catalogue import __all__ as __all__
from fedpca.solvers.personalized import program as _personalized  # noqa: F401
from fedpca.solvers.robust import program as _robust  # noqa: F401
from fedpca.solvers.verification import verify_script as _verify_script  # noqa: F401
