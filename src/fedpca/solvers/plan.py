"""Estimates of how many bytes the exact solvers move, before anything is asked.

For d features, k components and blocks of k columns, a site sends and receives so many bytes:

    the triangle of A'A        4 d (d + 1) + 8 d k        in one round
    block Lanczos              16 d k                     in each of about `expected_rounds`

So the triangle is cheaper when ``d + 1 + 2 k < 4 k rounds``.
"""

from __future__ import annotations

import math

LANCZOS_ROUNDS = 15  # with blocks of as many columns as components, on a spectrum that falls slowly


def expected_rounds(n: int, d: int, k: int) -> int:
    """Estimate the rounds of block Lanczos; after ``min(n, d) / k`` the Krylov space is complete."""
    return max(1, min(LANCZOS_ROUNDS, math.ceil(min(n, d) / k)))


def triangle_bytes(d: int, k: int) -> int:
    """Return the bytes to and from one site if it sends the triangle of A'A."""
    return 4 * d * (d + 1) + 8 * d * k


def block_bytes(d: int, k: int, rounds: int) -> int:
    """Return the bytes to and from one site if blocks of k columns go both ways in each round."""
    return 16 * d * k * rounds


def triangle_is_cheaper(n: int, d: int, k: int) -> bool:
    """Return whether one triangle moves fewer bytes than the blocks of Lanczos."""
    return triangle_bytes(d, k) < block_bytes(d, k, expected_rounds(n, d, k))
