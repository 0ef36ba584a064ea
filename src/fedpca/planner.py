"""What each solver will cost, before it is asked: the choice behind ``solver="auto"``.

For d features, k components and blocks of b columns a site sends and receives

    covariance        4 d (d + 1) + 8 d k            one round
    lanczos           16 d b                         each of about `expected_rounds`

bytes, so the covariance is cheaper when ``d + 1 + 2 k < 4 b rounds``.
"""

from __future__ import annotations

import math

EXPECTED_ROUNDS = 15  # of block Lanczos with b = k on spectra that fall slowly


def expected_rounds(n: int, d: int, k: int) -> int:
    """Rounds of block Lanczos; the Krylov space is whole after ``min(n, d) / k`` of them."""
    return max(1, min(EXPECTED_ROUNDS, math.ceil(min(n, d) / k)))


def covariance_bytes(d: int, k: int) -> int:
    """Bytes to and from one site of the covariance solver."""
    return 4 * d * (d + 1) + 8 * d * k


def lanczos_bytes(n: int, d: int, k: int) -> int:
    """Bytes to and from one site of the Lanczos solver."""
    return 16 * d * k * expected_rounds(n, d, k)


def choose_solver(n: int, d: int, k: int) -> str:
    """The exact solver that moves fewer bytes."""
    return "covariance" if covariance_bytes(d, k) < lanczos_bytes(n, d, k) else "lanczos"
