"""scikit-learn estimators over the solvers, and the one way to read their files."""

from __future__ import annotations

import os

from fedpca.errors import FileError
from fedpca.estimators.federated import FederatedPCA
from fedpca.estimators.personalized import PersonalizedPCA
from fedpca.estimators.rank_search import search_ranks
from fedpca.estimators.robust import RobustPCA
from fedpca.estimators.streaming import StreamingPCA
from fedpca.personal_model import KIND
from fedpca.tensorfile import read_arrays

__all__ = ["FederatedPCA", "PersonalizedPCA", "RobustPCA", "StreamingPCA", "load", "search_ranks"]


def load(path: str | os.PathLike[str]) -> FederatedPCA | PersonalizedPCA | RobustPCA | StreamingPCA:
    """The fitted estimator in a model file."""
    _, header = read_arrays(path, "model")
    if header.get("kind") == "summary":
        raise FileError(f"{path} is not a model of fedpca but a summary; Summary.load reads it")
    if header.get("kind") == KIND:
        return PersonalizedPCA.load(path)
    kinds = {kind.__name__: kind for kind in (FederatedPCA, RobustPCA, StreamingPCA)}
    kind = kinds.get(str(header.get("estimator")), FederatedPCA)
    return kind.load(path)
