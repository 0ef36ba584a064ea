"""Robust PCA: split rows into a low-rank part with common components and a sparse part."""

from fedpca.solvers.robust.hard import Threshold
from fedpca.solvers.robust.soft import Auto, Dcf, LeastSquares

__all__ = ["Auto", "Dcf", "LeastSquares", "Threshold"]
