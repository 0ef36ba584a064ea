"""Personalized PCA: find the directions that all sites share and each site's local directions."""

from fedpca.solvers.personalized.gradient import Polar, Stiefel
from fedpca.solvers.personalized.power import Power

__all__ = ["Polar", "Power", "Stiefel"]
