"""scikit-learn estimators over the solvers, and the one way to read their files."""

from __future__ import annotations

import os

from fedpca.estimators.federated import FederatedPCA

__all__ = ["FederatedPCA", "load"]


def load(path: str | os.PathLike[str]) -> FederatedPCA:
    """The fitted estimator in a model file."""
    return FederatedPCA.load(path)
