"""Arrays of a scratch pad are used again, and names do not share memory."""

import numpy as np

from fedpca.linalg.scratch import Scratch


def test_a_smaller_block_uses_the_memory_of_a_larger_one():
    scratch = Scratch()
    large = scratch("R", (4, 3))
    small = scratch("R", (2, 3))
    assert small.shape == (2, 3)
    assert np.shares_memory(large, small)
    assert scratch("R", (8, 3)).shape == (8, 3)


def test_names_have_memory_and_types_of_their_own():
    scratch = Scratch()
    R, mask = scratch("R", (2, 2)), scratch("mask", (2, 2), bool)
    R[:], mask[:] = 1.0, False
    assert mask.dtype == bool
    assert (R == 1.0).all()
    assert not np.shares_memory(R, mask)
