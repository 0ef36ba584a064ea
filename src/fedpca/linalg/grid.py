"""End the digits of an answer where the digits of its rows end.

    step = 2^-48 p q t,   where |x| <= p q bounds the sum of products x, and t >= 1 counts terms

A site computes a row's entry x - m, or its score along a direction, with a relative error of 2^-53 of
the numbers that the entry is formed from. If these numbers are huge and cancel, as a coordinator that
lies can arrange, only this error is left, and it tells which rows are beyond a threshold. So no sum
of squares or products leaves a site with digits that small: it is rounded to whole multiples of a step.

**Why the step is large enough.** Let p be the norm of a column ``a``, and q that of ``b``. Errors e
and f with ``|e_i| <= u |a_i|`` and ``|f_i| <= u |b_i|`` change a'b by at most

    sum |e_i b_i| + |a_i f_i| <= 2 u p q   (Cauchy and Schwarz),   u = 2^-53,

which is 1/16 of a step. A row's part in a'b moves the rounded sum by itself only if it is at least half
a step, so the smallest visible part of one row is ``|a_i b_i| >= 2^-49 p q``.

**What p and q are.** They are the norms of what entries are formed from, not of the entries:

- For an entry (c, k) of A'A, the norms of the columns c and k about the mean, before any direction is
  removed. About a point that is not the true mean, they can only be larger.
- For an entry (c, j) of A'(A Z), the norm of column c and ``nu_j = sum_l ||A_l|| |Z_lj|``. The norm
  of the scores would not do, because their terms can cancel.
- For what is left of A once directions V are removed, ``||A_c|| + sum_j |V_cj| nu_j``, with V for Z.

If a row's entry is a sum of m terms, its error is at most m u of the sum of their sizes. So beyond 32
terms, the step grows by t, the power of two above m / 32.

The scale of a run has no part in this: it divides numbers that are on their grid already. What is
computed only from such numbers (A'A Z from A'A, the sum of squares, V'A'A V) needs no other rounding.

**Why the points between two steps are secret.** If a coordinator knows at which sum an answer changes
to the next step, it can add numbers that it knows, one after another, until the answer changes, and so
find all digits of the sum. So where rows are multiplied by a coordinator's directions, a site that does
not trust it moves these points by a random share of a step, from -1/2 to 1/2, which is another one for
other directions (`secret_shares`). Then a part x of a step changes only the chance of the next step, by
x, and it takes about ``1 / x^2`` answers to see it. An answer is off by up to one step instead of half.

**Why rounding is exact.** p and q are rounded up to powers of two, so a step is one too. Adding
``C = 1.5 2^52 step`` puts x + C between 2^52 and 2^53 steps, where neighboring float64 numbers are one
step apart, because |x| <= p q is below 2^51 steps. So x + C is rounded to a whole step, and C can be
subtracted without error, with the same bits on any machine.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from scipy.linalg.blas import dger

from fedpca.arrays import Array

UNIT = 2.0**-53  # half the distance from 1 to the next number
SHARE = 2.0**-48  # a step, as a share of the norms that an entry is formed from
FEW_TERMS = 32  # with more terms in a row's entry, the step grows
TO_ROUND = 1.5 * 2.0**52  # of steps, to add and subtract
BLOCK_ENTRIES = 1 << 16  # to round at a time, so that they stay in cache
# between these products of norms, neither a step nor what is added underflows or overflows
LEAST_NORMS, MOST_NORMS = 2.0**-970, 2.0**1000
# bound on the error of A'A times a direction, as a share of the trace: each entry is off by half a
# step, and each norm is rounded up to less than twice its size
TRACE_ERROR = 2 * SHARE


def rounded_up(norms: Any) -> Any:
    """Return the smallest powers of two that are at least the norms; zeros stay zeros.

    The leading bit of x is ``|q - (1 - u) q|`` with ``q = (2^52 + 1) x``. Only sums and products are
    used, so an array on a device is rounded there, to the same bits. Source: Rump, Ogita, and Oishi,
    "Accurate floating-point summation part I: faithful rounding" (2008).
    """
    below = norms * (1 - UNIT)  # so that a power of two is its own
    q = below * (2.0**52 + 1)
    return 2 * abs(q - (1 - UNIT) * q)


def growth(n_terms: float) -> float:
    """Return by which power of two a step grows if a row's entry is a sum of this many terms."""
    return float(rounded_up(max(1.0, n_terms / FEW_TERMS)))


def score_norms(norms: Array, Z: Array) -> Array:
    """Return ``nu_j = sum_l norms_l |Z_lj|``, ``(k,)``; BLAS might give it other last bits."""
    return np.asarray(np.einsum("d,dk->k", norms, np.abs(Z)))


def norms_left(norms: Array, V: Array) -> Array:
    """Return the norms that each column is formed from once directions V, ``(d, k)``, are removed."""
    return np.asarray(norms + np.einsum("dk,k->d", np.abs(V), score_norms(norms, V)))


def secret_shares(secret: bytes, shape: tuple[int, ...], *about: Array) -> Array:
    """Return shares of a step, from -1/2 to 1/2, that follow from a secret and what is asked."""
    digest = hashlib.blake2b(key=secret[: hashlib.blake2b.MAX_KEY_SIZE])
    for array in about:
        digest.update(np.ascontiguousarray(array).tobytes())
    rng = np.random.default_rng(np.frombuffer(digest.digest(), np.uint64))
    return rng.random(shape) - 0.5


def to_grid(
    values: Array, left: Array, right: Array, n_terms: float = 1.0, shares: Array | None = None
) -> Array:
    """Round ``values`` in place to whole multiples of ``2^-48 left right``, and return them.

    For a matrix, ``(d, k)``, ``left``, ``(d,)``, and ``right``, ``(k,)``, are the norms of rows and
    columns. For a vector, all three have the same shape. Where a norm is zero, so is the result.
    ``n_terms`` is the number of terms in a row's entry. ``shares``, from `secret_shares`, move the
    points between two steps.
    """
    is_same = right is left
    left = rounded_up(left)
    right = left if is_same else rounded_up(right)
    if n_terms > FEW_TERMS:
        left = left * growth(n_terms)
    if values.ndim == 1:
        values[...] = _one_by_one(values, left, right, shares)
        return values
    if not values.size:
        return values
    least, most = left.min() * right.min(), left.max() * right.max()
    if not (least > LEAST_NORMS and most <= MOST_NORMS):
        values[left == 0] = 0.0
        values[:, right == 0] = 0.0
        if not _are_ordinary(left, right):
            values[...] = _one_by_one(values, left[:, None], right, shares)
            # sums of products that underflow would count the rows whose products do not
            values[left[:, None] * right < LEAST_NORMS] = 0.0
            return values
    if shares is not None:
        values += shares * (SHARE * left[:, None] * right)
    if values.flags.c_contiguous:
        _round_in_place(values, left, right)
    elif values.T.flags.c_contiguous:
        _round_in_place(values.T, right, left)
    else:
        copy = np.ascontiguousarray(values)
        _round_in_place(copy, left, right)
        values[...] = copy
    return values


def _round_in_place(values: Array, left: Array, right: Array) -> None:
    """Round a C-contiguous matrix; BLAS adds an outer product without storing it."""
    n_rows = max(1, BLOCK_ENTRIES // max(1, len(right)))
    left = TO_ROUND * SHARE * left
    for start in range(0, len(left), n_rows):
        own, block = left[start : start + n_rows], values[start : start + n_rows].T
        # the product of two powers of two is exact, so each sum is rounded once
        dger(1.0, right, own, a=block, overwrite_a=True)
        dger(-1.0, right, own, a=block, overwrite_a=True)


def to_add(left: Any, right: Any) -> Any:
    """Return C, ``(d, k)``, such that ``(x + C) - C`` is x on its grid, for arrays on a device."""
    return TO_ROUND * SHARE * rounded_up(left)[:, None] * rounded_up(right)[None, :]


def _are_ordinary(left: Array, right: Array) -> bool:
    """Return whether no product of two norms, apart from zeros, comes near underflow or overflow."""
    if left.max() * right.max() > MOST_NORMS:
        return False
    least = left[left > 0].min(initial=1.0) * right[right > 0].min(initial=1.0)
    return bool(least > LEAST_NORMS)


def _one_by_one(values: Array, left: Array, right: Array, shares: Array | None) -> Array:
    """Return what `to_grid` returns, for norms that may be zero, or whose products leave the range."""
    ratios = values / np.where(left > 0, left, 1.0) / np.where(right > 0, right, 1.0)
    steps = ratios / SHARE if shares is None else ratios / SHARE + shares
    return np.asarray(np.rint(steps) * SHARE * left * right)
