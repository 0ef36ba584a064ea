"""Estimate how many bytes the exact solvers move, before the sites are asked anything.

For d features, k components, and blocks of k columns, a site sends and receives this many bytes:

    the triangle of A'A        4 d (d + 1) + 8 d k        in one round
    block Lanczos              16 d k                     in each of about `expected_rounds` rounds

So the triangle is cheaper when ``d + 1 + 2 k < 4 k rounds``.
"""

from __future__ import annotations

import math

LANCZOS_ROUNDS = 15  # for one block column per component and a slowly decaying spectrum


def expected_rounds(n: int, d: int, k: int) -> int:
    """Estimate how many rounds block Lanczos takes; ``min(n, d) / k`` complete the Krylov space."""
    return max(1, min(LANCZOS_ROUNDS, math.ceil(min(n, d) / k)))


def triangle_bytes(d: int, k: int) -> int:
    """Return the number of bytes to and from one site if it sends the triangle of A'A."""
    return 4 * d * (d + 1) + 8 * d * k


def block_bytes(d: int, k: int, rounds: int) -> int:
    """Return the number of bytes to and from one site if k columns go both ways in each round."""
    return 16 * d * k * rounds


def triangle_is_cheaper(n: int, d: int, k: int) -> bool:
    """Return whether sending one triangle moves fewer bytes than sending Lanczos blocks."""
    return triangle_bytes(d, k) < block_bytes(d, k, expected_rounds(n, d, k))
