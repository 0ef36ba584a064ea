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


def low_rank_rows(n=200, d=None, r=10, share=0.05, size=None, noise=0.0, seed=0):
    """Rows, their low-rank part, and where the outliers are."""
    rng = np.random.default_rng(seed)
    d = d or n
    L = rng.standard_normal((n, r)) @ rng.standard_normal((r, d))
    bad = rng.random((n, d)) < share
    S = np.where(bad, (size or np.sqrt(n * d)) * rng.choice([-1, 1], (n, d)), 0.0)
    return L + S + noise * rng.standard_normal((n, d)), L, bad
