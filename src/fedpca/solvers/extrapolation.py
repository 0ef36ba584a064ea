"""Anderson's extrapolation of an iteration x <- f(x) from its last few steps.

    x_next = sum_j a_j f(x_j),   a the numbers of sum 1 that make sum_j a_j (f(x_j) - x_j) shortest

Near a fixed point f is about linear, and what is left after m steps is that of a Krylov method instead
of m-fold iteration. Source: Walker and Ni, "Anderson acceleration for fixed-point iterations" (2011).
"""

from __future__ import annotations

import numpy as np

from fedpca.message import Array

MEMORY = 5  # steps
RCOND = 1e-10  # of differences between steps that are nearly the same


class Extrapolation:
    """The last steps of an iteration."""

    def __init__(self) -> None:
        self._places: list[Array] = []
        self._images: list[Array] = []

    def next(self, x: Array, f: Array) -> Array:
        """Where to go from x, whose image is f, by this step and those before."""
        self._places = [*self._places[-MEMORY:], x.ravel()]
        self._images = [*self._images[-MEMORY:], f.ravel()]
        images = np.array(self._images)
        if len(images) == 1:
            return f
        lacks = images - np.array(self._places)
        steps = np.diff(lacks, axis=0)
        by = np.linalg.lstsq(steps.T, lacks[-1], rcond=RCOND)[0]
        return np.asarray((images[-1] - by @ np.diff(images, axis=0)).reshape(x.shape))

    def clear(self) -> None:
        """Begin anew, where the last step led astray."""
        self._places, self._images = [], []
