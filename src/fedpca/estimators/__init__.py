"""scikit-learn estimators over the solvers, and the one way to read their files."""

from __future__ import annotations

import os

from fedpca.errors import FileError
from fedpca.estimators.federated import FederatedPCA
from fedpca.estimators.streaming import StreamingPCA
from fedpca.tensorfile import read_arrays

__all__ = ["FederatedPCA", "StreamingPCA", "load"]


def load(path: str | os.PathLike[str]) -> FederatedPCA | StreamingPCA:
    """The fitted estimator in a model file."""
    _, header = read_arrays(path, "model")
    if header.get("kind") == "summary":
        raise FileError(f"{path} is not a model of fedpca but a summary; Summary.load reads it")
    is_stream = header.get("estimator") == StreamingPCA.__name__
    return StreamingPCA.load(path) if is_stream else FederatedPCA.load(path)
