"""Rows on the grid: whole numbers within the ball, from the row alone, and sums without rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from fedpca.errors import InputError
from fedpca.rows import bounded
from fedpca.rows.bounded import RADIUS, bounded_blocks, on_grid
from fedpca.rows.open import open_rows

HUGE = np.finfo(np.float64).max
numbers = (
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 5e-324, 1e-300, 1e300, -1e300, HUGE, -HUGE, 0.5])
    | st.floats(-10, 10)
    | st.floats(allow_nan=False, allow_infinity=False)
)
radii = st.sampled_from([1e-100, 1e-3, 1.0, 3.7, 2.0**18, 1e100])


@st.composite
def tables(draw, min_rows=0, max_rows=8, elements=numbers):
    shape = draw(st.integers(min_rows, max_rows)), draw(st.integers(1, 20))
    return draw(hnp.arrays(np.float64, shape, elements=elements))


@settings(max_examples=300)
@given(tables(), numbers, radii)
def test_rows_are_whole_numbers_within_the_ball_however_large(rows, guess, radius):
    placed = on_grid(rows, np.full(rows.shape[1], guess), radius)
    assert np.array_equal(placed, np.rint(placed))
    lengths = [sum(int(each) ** 2 for each in row) for row in placed]
    assert max(lengths, default=0) <= RADIUS**2


@given(tables(min_rows=1, elements=st.floats(-3, 3)), st.floats(0.5, 20))
def test_rows_keep_their_place_up_to_a_step_and_those_outside_their_direction(rows, radius):
    d = rows.shape[1]
    placed = on_grid(rows, np.ones(d), radius)
    offsets = rows - 1.0
    limit = radius * (1 - (np.sqrt(d) / 2 + 1) / RADIUS)
    lengths = np.linalg.norm(offsets, axis=1, keepdims=True)
    moved = offsets * np.minimum(1.0, limit / np.maximum(lengths, 1e-30))
    assert np.abs(placed - moved * (RADIUS / radius)).max() <= 0.5 + 1e-6


def rows_of(kind, rows):
    if kind == "float32":
        return open_rows(rows.astype(np.float32))
    if kind == "sparse":
        return open_rows(sparse.csr_array(rows))
    return open_rows(np.asfortranarray(rows) if kind == "columns" else rows)


@pytest.mark.parametrize("kind", ["plain", "columns", "float32", "sparse"])
@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    st.integers(1, 40),
    st.integers(1, 7),
    st.booleans(),
)
def test_a_rows_place_depends_on_the_row_alone(kind, seed, n, d, step, reorder):
    """To the bit: position, neighbors, blocks, and the order of numbers in memory do not matter."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-3, 4, (n, 1))
    rows = rows.astype(np.float32).astype(np.float64)
    center, radius = rng.standard_normal(d), 2.5
    order = rng.permutation(d) if reorder else None
    alone = [
        on_grid(row[None, slice(None) if order is None else order], center, radius) for row in rows
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded, "rows_per_block", lambda d: step)
        blocks = list(bounded_blocks(rows_of(kind, rows), center, radius, order))
    assert max(map(len, blocks)) <= step
    assert np.vstack(blocks).tobytes() == np.vstack(alone).tobytes()


def test_sums_of_products_are_exact_in_any_order_even_at_the_bound():
    rows = np.full((2000, 3), 1e300) * [[1, 1, -1]]
    placed = on_grid(rows, np.zeros(3), 1.0)
    exact = sum(int(x) * int(y) for x, y in zip(placed[:, 0], placed[:, 2], strict=True))
    assert int((placed.T @ placed)[0, 2]) == exact
    assert bounded.MAX_EXACT_ROWS * RADIUS**2 == 2**53


def test_a_block_has_no_more_rows_than_add_up_exactly():
    rows = open_rows(np.zeros((bounded.MAX_EXACT_ROWS + 5, 1)))
    assert max(len(block) for block in bounded_blocks(rows, np.zeros(1), 1.0)) <= (
        bounded.MAX_EXACT_ROWS
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_without_a_place_are_refused_and_not_counted(bad):
    rows = np.ones((5, 3))
    rows[3, 1] = bad
    with pytest.raises(InputError, match="some values are missing or infinite") as raised:
        list(bounded_blocks(open_rows(rows), np.zeros(3), 1.0))
    assert not any(character.isdigit() for character in str(raised.value))
