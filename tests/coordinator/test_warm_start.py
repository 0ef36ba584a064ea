"""The rows of a subspace follow their features from one attempt to the next."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca.coordinator.warm_start import WarmStart
from fedpca.linalg.dense import orth

U = orth(np.random.default_rng(0).standard_normal((4, 2)))
NAMES = ("a", "b", "c", "d")


@pytest.mark.parametrize("features", [NAMES, list(NAMES), None])
def test_the_same_features_keep_the_subspace(features):
    assert WarmStart(U, NAMES).among(features) is U
    assert WarmStart(U).among(features) is U  # without names, columns are matched by position


def test_rows_follow_the_order_of_their_features():
    np.testing.assert_array_equal(WarmStart(U, NAMES).among("dbac"), U[[3, 1, 0, 2]])


@pytest.mark.parametrize("features", ["dxbacy", "ca", "xyz", "c"])
def test_features_that_come_and_go_leave_an_orthonormal_basis_of_what_is_known(features):
    matched = WarmStart(U, NAMES).among(features)
    known = [NAMES.index(name) if name in NAMES else None for name in features]
    rows = np.array([np.zeros(2) if i is None else U[i] for i in known])
    assert matched.shape == (len(features), min(2, len(features)))
    np.testing.assert_allclose(matched.T @ matched, np.eye(matched.shape[1]), atol=1e-12)
    np.testing.assert_allclose(matched @ (matched.T @ rows), rows, atol=1e-12)
