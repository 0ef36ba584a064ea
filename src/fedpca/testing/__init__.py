"""Checks that any engine or solver must pass, and an engine that follows a script.

They are for this package's own tests, and for packages that add an engine or a solver, as
scikit-learn's `check_estimator` is for estimators.
"""

from fedpca.testing.engines import check_engine
from fedpca.testing.scripted import Reply, ScriptedEngine, spoil
from fedpca.testing.solvers import check_solver

__all__ = ["Reply", "ScriptedEngine", "check_engine", "check_solver", "spoil"]
