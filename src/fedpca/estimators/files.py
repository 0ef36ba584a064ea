"""Write and read the headers of model files, for the `save` and `load` methods of all estimators."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sklearn.base import BaseEstimator

from fedpca.coordinator.record import RunRecord, check_log_normalized
from fedpca.errors import FileError
from fedpca.estimators.fitting import plain_params
from fedpca.privacy.gaussian import Privacy
from fedpca.solvers.catalogue import from_plain, to_plain
from fedpca.solvers.contract import FAMILIES

T = TypeVar("T", bound=BaseEstimator)


def file_header(estimator: BaseEstimator, n_samples: int, **more: Any) -> dict[str, Any]:
    """Return the header for an estimator's file, without the state of a random generator."""
    parameters = plain_params(estimator)
    if not isinstance(parameters.get("random_state"), int | None):
        parameters["random_state"] = None
    if "solver" in parameters:
        parameters["solver"] = to_plain(parameters["solver"])
    if isinstance(parameters.get("privacy"), Privacy):
        parameters["privacy"] = parameters["privacy"].to_plain()
    names = getattr(estimator, "feature_names_in_", None)
    return {
        "estimator": type(estimator).__name__,
        "parameters": parameters,
        "features": None if names is None else list(names),
        "n_samples": n_samples,
        **more,
    }


def estimator_from_header(kind: type[T], path: str | os.PathLike[str], header: dict[str, Any]) -> T:
    """Create the unfitted estimator that a file's header describes."""
    if header.get("estimator") != kind.__name__:
        raise FileError(
            f"{path} holds a {header.get('estimator')}, not a {kind.__name__}; use fedpca.load"
        )
    parameters = dict(header["parameters"])
    if "solver" in parameters:
        parameters["solver"] = from_plain(parameters["solver"], FAMILIES[kind.__name__])
    if parameters.get("privacy") is not None:
        parameters["privacy"] = Privacy.from_plain(parameters["privacy"])
    estimator: T = kind(**parameters)
    estimator._validate_params()
    return estimator


def record_in(header: dict[str, Any]) -> RunRecord:
    """Return the run record in a file's header, or a new one if a site wrote the file without one."""
    if "run" in header:
        return RunRecord.from_header(header["run"])
    return RunRecord(log_normalized=check_log_normalized(header.get("log_normalized", 0.0)))


@contextmanager
def usable_header(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors inside the block into a `FileError` about the file's header."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"{path} has an invalid header: {error}") from None
