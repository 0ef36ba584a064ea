"""Describe the part of a covariance outside its leading eigenvectors by three traces.

    R = (I - V V') C (I - V V') / tr C,   t_i = tr R^i,   i = 1, 2, 3

`fedpca.linalg.dense.residual_traces` computes them. Up to factors, they are the first three cumulants
of a row's squared distance to the components: if rows are normally distributed with the residual
covariance S, then ``q = |x|^2`` has the mean ``tr S``, the variance ``2 tr S^2``, and the third
cumulant ``8 tr S^3``.

The traces of a covariance of few rows are larger than those of S, because sampling spreads the
eigenvalues. A scatter W of f rows is a Wishart matrix, for which

    E tr W^2      = f (f + 1) s2                  + f s1^2
    E (tr W)^2    = 2 f s2                        + f^2 s1^2
    E tr W^3      = f (f^2 + 3 f + 4) s3          + 3 f (f + 1) s1 s2          + f s1^3
    E tr W tr W^2 = 4 f (f + 1) s3                + f (f^2 + f + 4) s1 s2      + f^2 s1^3
    E (tr W)^3    = 8 f s3                        + 6 f^2 s1 s2                + f^3 s1^3

From these equations, the traces ``s_i = tr S^i`` follow without bias.

Source: Letac and Massam, "All invariant moments of the Wishart distribution" (2004); for the first two,
Srivastava, "Some tests concerning the covariance matrix in high dimensional data" (2005).
"""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array

MIN_FREEDOM = 3  # degrees of freedom that an unbiased estimate of the third trace needs


def of_even_noise(total: float, n_directions: int) -> Array:
    """Return the three traces of a covariance with the same variance in all directions."""
    return np.array([total, total**2 / n_directions, total**3 / n_directions**2])


def without_bias(traces: Array, freedom: float, n_directions: int) -> Array:
    """Return unbiased estimates of the traces of S, ``(3,)``.

    ``traces`` are the traces of a scatter with ``freedom`` degrees of freedom. Each estimate is kept
    within the range that is possible for a covariance of ``n_directions`` directions.
    """
    f, (w1, w2, w3) = max(freedom, MIN_FREEDOM), traces
    second = np.array([[f * (f + 1), f], [2 * f, f**2]])
    third = np.array(
        [
            [f * (f**2 + 3 * f + 4), 3 * f * (f + 1), f],
            [4 * f * (f + 1), f * (f**2 + f + 4), f**2],
            [8 * f, 6 * f**2, f**3],
        ]
    )
    s1 = w1 / f
    s2 = np.linalg.solve(second, [w2, w1**2])[0]
    s2 = min(max(s2, s1**2 / n_directions), s1**2)
    s3 = np.linalg.solve(third, [w3, w1 * w2, w1**3])[0]
    s3 = min(max(s3, s2**2 / s1 if s1 > 0 else 0.0), s2**1.5)
    return np.array([s1, s2, s3])
