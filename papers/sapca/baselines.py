"""Follow a stream with the rivals of SPCA and SAPCA, each in one short generator.

Rows are samples, taken about zero. Every function reads rows ``(n, d)`` from the top and regularly
yields ``(t, directions)``: how many rows it has seen, and orthonormal rows ``(k, d)`` that span the
subspace found so far. `last` gives the directions at the end; the measures below judge them.

They are those that Grammenos et al., "Federated PCA with adaptive rank estimation", compare with, each
in a form that does it justice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

Array = np.ndarray
State = tuple[int, Array]


def last(states: Iterable[State]) -> Array:
    """Return the directions at the end of a stream."""
    return deque(states, maxlen=1)[0][1]


def orthonormal(rows: Array) -> Array:
    """Return orthonormal rows, ``(k, d)``, with the span of the given ones."""
    return np.ascontiguousarray(np.linalg.qr(rows.T)[0].T)


def random_start(k: int, d: int, seed: int) -> Array:
    """Return orthonormal rows, ``(k, d)``, in random directions."""
    return orthonormal(np.random.default_rng([seed, k, d]).standard_normal((k, d)))


def squared_error(rows: Array, directions: Array) -> float:
    """Return what orthonormal directions leave of the rows: ``|X|^2 - |X C'|^2``."""
    return float(np.sum(rows**2) - np.sum((rows @ directions.T) ** 2))


def best_error(rows: Array, k: int) -> float:
    """Return what the k leading directions of the offline SVD leave, which is the least possible."""
    return float(np.linalg.eigvalsh(rows.T @ rows)[: rows.shape[1] - k].sum())


def excess(rows: Array, directions: Array) -> float:
    """Return by how many percent the error exceeds that of the offline SVD with as many directions."""
    return 100 * (squared_error(rows, directions) / best_error(rows, len(directions)) - 1)


def mean_sine(A: Array, B: Array) -> float:
    """Return the root mean square sine of the principal angles between spans of orthonormal rows."""
    return float(np.linalg.norm(B - (B @ A.T) @ A) / np.sqrt(len(B)))


def frequent_directions(
    rows: Array, k: int, *, sketch: int | None = None, every: int = 50
) -> Iterator[State]:
    """Follow Frequent Directions: a sketch of few rows, which is shrunk when it is full.

    If ``B = U diag(s) C`` holds the 2 l rows collected so far, the rows kept are

        B <- diag(sqrt(max(s^2 - s_(l+1)^2, 0))) C,

    of which at most l are not zero. ``A'A - B'B`` is positive, and at most the sum of all that was
    subtracted. Room for 2 l rows makes decompositions rare. The rows in it at the end count in full.

    Source: Ghashami, Liberty, Phillips and Woodruff, "Frequent directions: simple and deterministic
    matrix sketching" (2016), the fast variant.
    """
    n, d = rows.shape
    size = min(sketch or 2 * k, d)
    buffer, filled = np.zeros((2 * size, d)), 0
    for t, row in enumerate(rows, start=1):
        if filled == len(buffer):
            _, s, C = np.linalg.svd(buffer, full_matrices=False)
            lost = s[size] ** 2 if size < len(s) else 0.0
            left = np.sqrt(np.maximum(s[:size] ** 2 - lost, 0.0))
            buffer[:size], filled = left[:, None] * C[:size], size
        buffer[filled], filled = row, filled + 1
        if t % every == 0 or t == n:
            yield t, np.linalg.svd(buffer[:filled], full_matrices=False)[2][:k]


def power_method(
    rows: Array, k: int, *, block: int | None = None, seed: int = 0
) -> Iterator[State]:
    """Follow the block power method: one step of power iteration for every block of rows.

        C <- orth(C X'X),    X the latest block, (b, d).

    It needs blocks of about d rows to beat their noise, and does not use the rows after the last whole
    block. It reports after every block.

    Source: Mitliagkas, Caramanis and Jain, "Memory limited, streaming PCA" (2013).
    """
    n, d = rows.shape
    size = min(block or d, n)
    C = random_start(k, d, seed)
    for end in range(size, n + 1, size):
        X = rows[end - size : end]
        C = orthonormal((C @ X.T) @ X)
        yield end, C


def grouse(
    rows: Array,
    k: int,
    *,
    step: float = 2.0,
    decaying: bool = False,
    every: int = 50,
    seed: int = 0,
) -> Iterator[State]:
    """Follow GROUSE with full observations: every row turns the subspace a little toward itself.

    With ``p`` the projection of a row x, ``w`` its coordinates and ``e = x - p``,

        C <- C + (w / |w|) ((cos a - 1) p / |p| + sin a e / |e|)',    a = step |p| |e|.

    A turn by a right angle or more is left out: it leads nowhere. A decaying step is divided by the
    mean of |x|^2 and by t / d, so that it does not depend on the scale of the rows.

    Source: Balzano, Nowak and Recht, "Online identification and tracking of subspaces from highly
    incomplete information" (2010); Balzano and Wright, "On GROUSE and incremental SVD" (2013).
    """
    n, d = rows.shape
    C, squares = random_start(k, d, seed), 0.0
    for t, x in enumerate(rows, start=1):
        squares += float(x @ x)
        w = C @ x
        p = w @ C
        e = x - p
        size_p, size_e = float(np.sqrt(w @ w)), float(np.sqrt(e @ e))
        angle = step * size_p * size_e * (d / squares if decaying and squares else 1.0)
        if 0 < angle < np.pi / 2:
            turn = (np.cos(angle) - 1) / size_p * p + np.sin(angle) / size_e * e
            C += np.outer(w / size_p, turn)
        if t % every == 0 or t == n:
            C = orthonormal(C)
            yield t, C


def spirit(
    rows: Array,
    k: int,
    *,
    adaptive: bool = True,
    thresholds: tuple[float, float] = (0.95, 0.98),
    forgetting: float = 1.0,
    most: int = 100,
    every: int = 50,
) -> Iterator[State]:
    """Follow SPIRIT: directions are updated in turn, as many as hold a share of the energy.

    What the directions before it leave of a row, ``x_i``, moves the i-th one by

        y = c_i x_i,   E_i <- forgetting E_i + y^2,   c_i <- c_i + (y / E_i) (x_i - y c_i),

    and the row goes on as ``x_i - y c_i``. A direction is added if those kept hold a smaller share of
    all energy than the lower threshold. The last one is dropped if the others hold a larger share than
    the upper one. Directions are made orthonormal again after every row. Otherwise, they become
    dependent, and the error is several times as large.

    Source: Papadimitriou, Sun and Faloutsos, "Streaming pattern discovery in multiple time-series"
    (2005), after Yang, "Projection approximation subspace tracking" (1995).
    """
    n, d = rows.shape
    low, high = thresholds
    C, energies, held, total = np.eye(k, d), np.full(k, 1e-3), np.zeros(k), 0.0
    for t, row in enumerate(rows, start=1):
        x = row.astype(np.float64)  # a copy, from which directions are taken out in turn
        total = forgetting * total + float(x @ x)
        for i, c in enumerate(C):
            y = float(c @ x)
            energies[i] = forgetting * energies[i] + y * y
            c += (y / energies[i]) * (x - y * c)
            x -= y * c
        C = orthonormal(C)
        held = forgetting * held + (C @ row) ** 2
        if adaptive and held.sum() < low * total and len(C) < min(most, d):
            C = orthonormal(np.vstack([C, np.eye(1, d, len(C))]))
            energies, held = np.append(energies, 1e-3), np.append(held, 0.0)
        elif adaptive and len(C) > 1 and held[:-1].sum() > high * total:
            C, energies, held = C[:-1], energies[:-1], held[:-1]
        if t % every == 0 or t == n:
            yield t, C.copy()
