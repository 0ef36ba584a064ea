"""Provide the estimators, which have scikit-learn's interface, and `load`, which reads their files."""

from __future__ import annotations

import os
from typing import Any

from fedpca.errors import FileError
from fedpca.estimators.cells import to_anndata
from fedpca.estimators.diagnosis import diagnose
from fedpca.estimators.federated import FederatedPCA
from fedpca.estimators.personalized import PersonalizedPCA
from fedpca.estimators.rank_search import search_ranks
from fedpca.estimators.robust import RobustPCA
from fedpca.estimators.streaming import StreamingPCA
from fedpca.estimators.verifying import verify
from fedpca.storage.tensor_file import read_arrays

__all__ = [
    "FederatedPCA",
    "PersonalizedPCA",
    "RobustPCA",
    "StreamingPCA",
    "diagnose",
    "load",
    "search_ranks",
    "to_anndata",
    "verify",
]


def load(path: str | os.PathLike[str]) -> FederatedPCA | PersonalizedPCA | RobustPCA | StreamingPCA:
    """Read a fitted estimator of any kind from a model file."""
    arrays, header = read_arrays(path, "model")
    if header.get("kind") == "summary":
        raise FileError(f"{path} is a summary, not a model; read it with Summary.load")
    kinds: dict[str, Any] = {
        kind.__name__: kind for kind in (FederatedPCA, PersonalizedPCA, RobustPCA, StreamingPCA)
    }
    fitted: FederatedPCA | PersonalizedPCA | RobustPCA | StreamingPCA
    kind = kinds.get(str(header.get("estimator")), FederatedPCA)
    fitted = kind._from_file(path, arrays, header)
    return fitted
