"""Run scikit-learn's own tests of PCA and IncrementalPCA on FederatedPCA and StreamingPCA.

    python benchmarks/peers.py

An adapter gives our estimators scikit-learn's parameters, and splits every table among three sites. A
test that fails must be in the table of intended differences, with the reason. If any other test fails,
or if a difference no longer occurs, this script exits with 1.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import sklearn.decomposition

from fedpca import FederatedPCA, StreamingPCA

TESTS = Path(sklearn.decomposition.__file__).parent / "tests"
N_SITES = 3

# scikit-learn's solvers, and our solvers that do the same
SOLVERS = {
    "auto": "auto",
    "full": "tsqr",
    "covariance_eigh": "covariance",
    "arpack": "lanczos",
    "randomized": "lanczos",
}

# the start of a test's name, and why the test fails
MEANT = {
    "test_sparse_pca_solver_error": "sparse rows work with every solver",
    "test_incremental_pca_sparse": "sparse rows work with partial_fit, too",
    "test_pca_validation": "messages are our own, and there is at least one component",
    "test_pca_score3": "there is at least one component",
    "test_pca_score[": "whitening scales scores, and does not change how likely a row is",
    "test_n_components_none[data0-arpack": "lanczos finds all components, not all but one",
    "test_n_components_none[data1-arpack": "lanczos finds all components, not all but one",
    "test_n_components_mle": "the rule is n_components='auto', not 'mle'",
    "test_pca_dim": "the rule is n_components='auto', not 'mle'",
    "test_mle_redundant_data": "the rule is n_components='auto', not 'mle'",
    "test_fit_mle_too_few_samples": "the rule is n_components='auto', not 'mle'",
    "test_mle_simple_case": "the rule is n_components='auto', not 'mle'",
    "test_pca_svd_solver_auto": "it looks at a private attribute",
    "test_pca_dtype_preservation": "components are float64 even if the rows are float32",
    "test_incremental_pca_validation": "messages are our own",
    "test_incremental_pca_partial_fit_float_division": "it sets n_samples_seen_, which is read-only",
}


class PCA(FederatedPCA):
    """`FederatedPCA` with the parameters of scikit-learn's PCA, over rows at three sites."""

    def __init__(
        self,
        n_components=None,
        *,
        copy=True,
        whiten=False,
        svd_solver="auto",
        tol=0.0,
        iterated_power="auto",
        n_oversamples=10,
        power_iteration_normalizer="auto",
        random_state=None,
    ):
        super().__init__(n_components, whiten=whiten, random_state=random_state)
        self.copy = copy
        self.svd_solver = svd_solver
        self.tol = tol
        self.iterated_power = iterated_power
        self.n_oversamples = n_oversamples
        self.power_iteration_normalizer = power_iteration_normalizer

    def fit(self, X, y=None):
        n = X.shape[0] if hasattr(X, "shape") else len(X)
        fitted = FederatedPCA(
            self.n_components,
            solver=SOLVERS[self.svd_solver],
            whiten=self.whiten,
            tol=self.tol or 1e-13,
            random_state=self.random_state,
        ).fit(X, sites=np.arange(n) * N_SITES // n)
        vars(self).update({name: value for name, value in vars(fitted).items() if name[-1] == "_"})
        return self

    def fit_transform(self, X, y=None):
        return self.fit(X).transform(X)


class IncrementalPCA(StreamingPCA):
    """`StreamingPCA` with the parameters of scikit-learn's IncrementalPCA."""

    def __init__(self, n_components=None, *, whiten=False, copy=True, batch_size=None):
        super().__init__(n_components, whiten=whiten, batch_size=batch_size)
        self.copy = copy


class Outcomes:
    """A pytest plugin that notes how each test ended."""

    def __init__(self):
        self.passed, self.failed = [], []

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::")[-1]
        if report.when == "call" and report.passed:
            self.passed.append(name)
        elif report.failed:
            self.failed.append(name)


def outcomes(file: str) -> Outcomes:
    """Run one file of tests with our estimators instead of scikit-learn's."""
    noted = Outcomes()
    theirs = sklearn.decomposition.PCA, sklearn.decomposition.IncrementalPCA
    sklearn.decomposition.PCA, sklearn.decomposition.IncrementalPCA = PCA, IncrementalPCA
    quiet = ["pytest.PytestRemovedIn10Warning", "sklearn.exceptions.ConvergenceWarning"]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            pytest.main(
                [
                    str(TESTS / file),
                    f"--rootdir={TESTS.parents[1]}",
                    "--config-file=/dev/null",
                    "-q",
                    "-p",
                    "no:cacheprovider",
                    *(f"-Wignore::{name}" for name in quiet),
                ],
                plugins=[noted],
            )
    finally:
        sklearn.decomposition.PCA, sklearn.decomposition.IncrementalPCA = theirs
    return noted


def main() -> int:
    faults, seen = [], set()
    for file in ("test_pca.py", "test_incremental_pca.py"):
        noted = outcomes(file)
        n = len(noted.passed) + len(noted.failed)
        print(f"{file}: {len(noted.passed)} of {n} pass")
        reasons: Counter[str] = Counter()
        for name in noted.failed:
            start = next((start for start in MEANT if name.startswith(start)), None)
            if start is None:
                faults.append(name)
            else:
                seen.add(start)
                reasons[MEANT[start]] += 1
        for reason, count in reasons.most_common():
            print(f"  {count:3d} differ: {reason}")
    for name in faults:
        print(f"FAULT: {re.sub(r'[^ -~]', '?', name)}")
    stale = sorted(set(MEANT) - seen)
    for start in stale:
        print(f"STALE: no test that begins with {start!r} fails")
    return 1 if faults or stale else 0


if __name__ == "__main__":
    sys.exit(main())
