"""Provide checks that every engine and solver must pass, and an engine that follows a script.

The tests of fedpca use them, and so can packages that add an engine or a solver. The checks play the
same role as scikit-learn's `check_estimator`.
"""

from fedpca.testing.engines import check_engine
from fedpca.testing.scripted import Reply, ScriptedEngine, spoil
from fedpca.testing.solvers import check_solver

__all__ = ["Reply", "ScriptedEngine", "check_engine", "check_solver", "spoil"]
