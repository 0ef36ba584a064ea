"""Run dask-ml's own tests of PCA on FederatedPCA, with rows in Dask arrays.

    python benchmarks/dask_ml_tests.py FOLDER

FOLDER is the folder ``tests`` of a checkout of dask-ml, since no package contains its tests. Check out
commit 051949b, which the table of intended differences is for. Only ``test_pca.py`` runs, without
``conftest.py``. Neither dask-ml nor an old scikit-learn is needed: this script provides what the tests
import from them. A test that fails must be in the table, with the reason. If any other test fails, or
if a difference no longer occurs, this script exits with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import unittest
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import sklearn.decomposition._pca as own_pca
import sklearn.utils._testing as own_testing

from fedpca import FederatedPCA
from peers import SOLVERS, Outcomes

# the name of a test, without its bracket if all cases of the test fail; and why the test fails
MEANT = {
    "test_pca": "there is at least one component",
    "test_pca_score3": "there is at least one component",
    "test_pca_validation": "messages are our own, and there is at least one component",
    "test_no_empty_slice_warning": "it uses pytest.warns(None), which pytest no longer has",
    "test_pca_dim": "the rule is n_components='auto', not 'mle'",
    "test_pca_score2": "whitening scales scores, and does not change how likely a row is",
    "test_pca_sparse_input": "sparse rows work with every solver",
    "test_pca_float_dtype_preservation[full]": "components are float64 even if rows are float32",
    "test_pca_float_dtype_preservation[randomized]": "components are float64 even if rows are float32",
    "test_fractional_n_components": "a share of the variance works",
    "test_unknown_shapes[": "blocks of unknown length work, without an error or a warning",
    "test_dataframe_pca_fat_shape[": "messages are our own, and unknown lengths need no warning",
    "test_pca_errors": "unknown lengths need no parameter errors=",
}


class PCA(FederatedPCA):
    """`FederatedPCA` with the parameters of dask-ml's PCA."""

    def __init__(
        self,
        n_components=None,
        copy=True,
        whiten=False,
        svd_solver="auto",
        tol=0.0,
        iterated_power=0,
        random_state=None,
        errors="raise",
    ):
        super().__init__(n_components, whiten=whiten, random_state=random_state)
        self.copy = copy
        self.svd_solver = svd_solver
        self.tol = tol
        self.iterated_power = iterated_power
        self.errors = errors

    def fit(self, X, y=None):
        if self.svd_solver not in {*SOLVERS, "tsqr"}:
            raise ValueError(f"svd_solver={self.svd_solver!r} is unknown")
        fitted = FederatedPCA(
            self.n_components,
            solver=SOLVERS.get(self.svd_solver, "tsqr"),
            whiten=self.whiten,
            tol=self.tol or 1e-13,
            random_state=self.random_state,
        ).fit(X)
        vars(self).update({name: value for name, value in vars(fitted).items() if name[-1] == "_"})
        return self

    def fit_transform(self, X, y=None):
        return self.fit(X).transform(X)


def assert_estimator_equal(left, right):
    """Compare what both estimators have in common after a fit."""
    for name in ("components_", "explained_variance_", "singular_values_", "mean_"):
        np.testing.assert_allclose(getattr(left, name), getattr(right, name), atol=1e-10)


def assess_dimension(spectrum, rank, n, _):
    """Return how likely a rank is; scikit-learn no longer accepts a rank of zero."""
    return own_pca._assess_dimension(spectrum, rank, n) if rank else -np.inf


def module(name: str, **contents: object) -> None:
    """Add a module with these contents, in place of a module that is not installed."""
    made = ModuleType(name)
    vars(made).update(contents)
    sys.modules[name] = made


def stand_in() -> None:
    """Provide what the tests import from dask-ml and from an old version of scikit-learn."""
    case = unittest.TestCase()
    decomposition = ModuleType("dask_ml.decomposition")
    decomposition.PCA = PCA
    module("dask_ml", decomposition=decomposition)
    sys.modules["dask_ml.decomposition"] = decomposition
    module("dask_ml.utils", assert_estimator_equal=assert_estimator_equal)
    module(
        "sklearn.decomposition.pca",
        _assess_dimension_=assess_dimension,
        _infer_dimension_=lambda spectrum, n, _: own_pca._infer_dimension(spectrum, n),
    )
    module(
        "sklearn.utils.testing",
        assert_almost_equal=own_testing.assert_almost_equal,
        assert_array_almost_equal=own_testing.assert_array_almost_equal,
        assert_raises=case.assertRaises,
        assert_raises_regex=case.assertRaisesRegex,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="tests of a checkout of dask-ml")
    file = parser.parse_args().folder / "test_pca.py"
    if not file.exists():
        parser.error(f"{file} does not exist; name the folder tests of a checkout of dask-ml")
    stand_in()
    noted = Outcomes()
    quiet = [
        "--config-file=/dev/null",
        "-q",
        "-p",
        "no:cacheprovider",
        "--runxfail",
        "--noconftest",
    ]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        pytest.main([str(file), f"--rootdir={file.parent}", *quiet], plugins=[noted])
    n = len(noted.passed) + len(noted.failed)
    if not n:
        print(f"{file} cannot be run; is it of commit 051949b?\n{printed.getvalue()}")
        return 1
    print(f"{file.name}: {len(noted.passed)} of {n} pass")
    faults, reasons, seen = [], Counter(), set()
    for name in noted.failed:
        start = next(
            (each for each in MEANT if name in (each, f"{each}{name.partition('[')[2]}")), None
        )
        if start is None:
            faults.append(name)
        else:
            seen.add(start)
            reasons[MEANT[start]] += 1
    for reason, count in reasons.most_common():
        print(f"  {count:3d} differ: {reason}")
    for name in faults:
        print(f"FAULT: {re.sub(r'[^ -~]', '?', name)}")
    for start in sorted(set(MEANT) - seen):
        print(f"STALE: no test that begins with {start!r} fails")
    return 1 if faults or set(MEANT) - seen else 0


if __name__ == "__main__":
    sys.exit(main())
