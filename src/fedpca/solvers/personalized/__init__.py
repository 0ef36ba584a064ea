"""Personalized PCA: find directions that all sites share, and local directions of each site."""

from fedpca.solvers.personalized.gradient import Polar, Stiefel
from fedpca.solvers.personalized.power import Power

__all__ = ["Polar", "Power", "Stiefel"]
