"""What all tests share."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fedpca",
    deadline=None,  # timings on shared machines say nothing
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)
settings.load_profile("fedpca")


def pooled(sites):
    """All rows in one float64 array."""
    return np.vstack([s.toarray() if hasattr(s, "toarray") else s for s in sites]).astype(float)


def gapped_rows(rng, n, d, k, offset=0.0, scale=1.0):
    """Rows whose spectrum falls gently to a gap below component k."""
    k = min(k, n - 1, d)
    deviations = np.concatenate([np.linspace(4, 2, k), np.linspace(0.7, 0.3, d - k)])
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    rows = rng.standard_normal((n, d)) * deviations @ basis.T
    return rows * scale + offset * scale
