"""A sparse matrix times itself is what its dense copy gives, whichever columns are filled most."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedpca.rows import in_memory, sparse_gram


@pytest.mark.parametrize("fill", [np.zeros(7), np.ones(7), np.linspace(0, 1, 7)], ids=str)
@pytest.mark.parametrize("n", [0, 1, 300])
@pytest.mark.parametrize("rows_in_tile", [5, 10**6])
def test_filled_and_sparse_columns_give_the_product_of_all(fill, n, rows_in_tile, monkeypatch):
    monkeypatch.setattr(in_memory, "BLOCK_BYTES", rows_in_tile * 8 * 7)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 7)) * (rng.random((n, 7)) < fill)
    found = sparse_gram.sparse_gram(sp.csr_array(X))
    np.testing.assert_allclose(found, X.T @ X, atol=1e-12 * max(1, n))
    np.testing.assert_array_equal(found, found.T)


def test_only_filled_columns_are_made_dense_and_a_few_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(in_memory, "BLOCK_BYTES", 40 * 8 * 2)
    shapes = []
    whole = sp.csr_array.toarray
    monkeypatch.setattr(
        sp.csr_array, "toarray", lambda self: shapes.append(self.shape) or whole(self)
    )
    rng = np.random.default_rng(0)
    X = sp.csr_array(rng.random((200, 50)) * (rng.random((200, 50)) < 0.02))
    X = sp.csr_array(sp.hstack([X, rng.random((200, 2))]))
    sparse_gram.sparse_gram(X)
    assert set(shapes) <= {(40, 2), (50, 50)}
