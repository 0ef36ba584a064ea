"""Anderson acceleration: extrapolate an iteration x <- f(x) from its last few steps.

    x_next = sum_j a_j f(x_j),   where a minimizes ||sum_j a_j (f(x_j) - x_j)|| subject to sum_j a_j = 1

Near a fixed point, f is almost linear. There, m steps reduce the error as much as m steps of a Krylov
method would, which is far more than m plain iterations do.

Source: Walker and Ni, "Anderson acceleration for fixed-point iterations" (2011).
"""

from __future__ import annotations

import numpy as np

from fedpca.arrays import Array

REMEMBERED_STEPS = 5
RCOND = 1e-10  # ignore directions along which the remembered steps hardly differ


class Anderson:
    """A record of an iteration's last few steps, used to predict the next point."""

    def __init__(self) -> None:
        self._points: list[Array] = []
        self._images: list[Array] = []

    def next(self, x: Array, f: Array) -> Array:
        """Return the next point, given x, its image f, and the remembered steps."""
        self._points = [*self._points[-REMEMBERED_STEPS:], x.ravel()]
        self._images = [*self._images[-REMEMBERED_STEPS:], f.ravel()]
        images = np.array(self._images)
        if len(images) == 1:
            return f
        residuals = images - np.array(self._points)
        changes = np.diff(residuals, axis=0)
        weights = np.linalg.lstsq(changes.T, residuals[-1], rcond=RCOND)[0]
        return np.asarray((images[-1] - weights @ np.diff(images, axis=0)).reshape(x.shape))

    def clear(self) -> None:
        """Forget all steps. Call this after a step that made things worse."""
        self._points, self._images = [], []
