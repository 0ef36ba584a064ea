"""No combination of sums over rows with and without gaps is about few rows, whatever the gaps are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fedpca.rows import gap_patterns
from fedpca.rows.gap_patterns import RowGaps, few_columns
from support import draws


def is_safe(flags, m, n_features, drops):
    """Try every set of m - 1 rows: without it, the sums must still have as many dimensions."""
    n, n_columns = flags.shape
    whole = ~flags.any(axis=1)
    vectors = np.column_stack([np.ones(n), flags, *([whole] if drops else [])]).astype(float)
    for c in range(-1 if n_columns < n_features else 0, n_columns):
        here = np.ones(n, bool) if c < 0 else ~flags[:, c]
        own = vectors[here]
        if not len(own):
            continue
        rank = np.linalg.matrix_rank(own)
        if len(own) < m:
            return False
        for out in itertools.combinations(range(len(own)), m - 1):
            if np.linalg.matrix_rank(np.delete(own, out, axis=0)) < rank:
                return False
        for k in range(n_columns):
            both = here & ~flags[:, k]
            sets = [both, both & ~whole] if drops else [both]
            if any(0 < each.sum() < m for each in sets):
                return False
    return True


@draws(150)
@given(
    n=st.integers(1, 15),
    n_columns=st.integers(1, 4),
    n_patterns=st.integers(1, 8),
    m=st.integers(2, 3),
    rate=st.sampled_from([0.1, 0.3, 0.5]),
    has_whole=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_rows_pass_only_if_no_few_of_them_carry_a_combination(
    n, n_columns, n_patterns, m, rate, has_whole, seed
):
    rng = np.random.default_rng(seed)
    patterns = rng.random((n_patterns, n_columns)) < rate
    flags = patterns[rng.integers(0, n_patterns, n)]
    flags = flags[:, flags.any(axis=0)]
    n_features = flags.shape[1] + has_whole
    drops = bool((~flags.any(axis=1)).sum() >= m)
    few = few_columns(flags, m, n_features=n_features, drops=drops).any()
    safe = is_safe(flags, m, n_features, drops) if flags.shape[1] else True
    assert few == (not safe)  # on tables this small, the rule refuses no safe one either


@pytest.mark.parametrize(("n", "n_columns", "rate"), [(1000, 30, 0.05), (2000, 20, 0.2)])
def test_ordinary_tables_with_scattered_gaps_pass(n, n_columns, rate):
    flags = np.random.default_rng(0).random((n, n_columns)) < rate
    assert not few_columns(flags, 5, n_features=n_columns + 1, drops=True).any()
    # one value that is given in a row without any other is given away
    flags[0] = True
    flags[0, 3] = False
    flags[1:, 3] = True
    assert few_columns(flags, 5, n_features=n_columns + 1, drops=False).any()


def test_columns_with_the_same_gaps_count_as_one_and_are_all_named():
    flags = np.zeros((40, 5), bool)
    flags[:6, [0, 3]] = True
    assert not few_columns(flags[:, [0, 3]], 5, n_features=5, drops=True).any()
    flags[6:9, [1, 2]] = True
    few = few_columns(flags[:, :4], 5, n_features=5, drops=True)
    assert few.tolist() == [False, True, True, False]


def test_a_table_that_takes_too_long_to_look_at_has_few_in_all_columns(monkeypatch):
    flags = np.random.default_rng(0).random((40, 4)) < 0.3
    monkeypatch.setattr(gap_patterns, "MAX_WORK", 0)
    assert few_columns(flags, 5, n_features=5, drops=True).all()


@draws(40)
@given(seed=st.integers(0, 10**6), is_sparse=st.booleans(), n_features=st.integers(1, 20))
def test_gaps_are_the_same_in_blocks_of_any_kind(seed, is_sparse, n_features):
    rng = np.random.default_rng(seed)
    gaps = rng.random((30, n_features)) < 0.1
    rows = np.where(gaps, np.nan, rng.integers(0, 2, gaps.shape).astype(float))
    seen = RowGaps(n_features)
    for start in (0, 7, 20):
        block = rows[start : {0: 7, 7: 20, 20: 30}[start]]
        seen.add(sp.csr_array(block) if is_sparse else block)
    columns, flags = seen.flags()
    assert columns.tolist() == np.flatnonzero(gaps.any(axis=0)).tolist()
    assert np.array_equal(flags, gaps[:, columns])
