"""Robust PCA: split rows into a low-rank part with common components and a sparse part."""

from fedpca.solvers.robust.dcf import Dcf
from fedpca.solvers.robust.hard import Threshold
from fedpca.solvers.robust.soft import Auto, LeastSquares

__all__ = ["Auto", "Dcf", "LeastSquares", "Threshold"]
