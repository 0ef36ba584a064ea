"""Print figures on secure sums: how masks connect sites, how exact sums are, and what they cost.

The last table shows what attacks recover.

python examples/secure_sums.py
"""

from __future__ import annotations

from math import ceil, exp, frexp, inf, lgamma, log
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer

from fedpca import FederatedPCA, Federation, PersonalizedPCA, RobustPCA
from fedpca.audit.leakage import audit
from fedpca.coordinator.ledger import ENVELOPE
from fedpca.privacy.masks import N_RINGS
from fedpca.privacy.rings import NARROW, WIDE, Ring, add_elements

SOLVERS = ("covariance", "lanczos", "subspace-iteration", "local-power", "faps")


def log_binomial(n: int, k: int) -> float:
    return -inf if not 0 <= k <= n else lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def log_sum(logs: list[float]) -> float:
    most = max(logs)
    return most if most == -inf else most + log(sum(exp(each - most) for each in logs))


def log_chance_apart(n: int, c: int, s: int) -> float:
    """Return the log of the chance that s honest sites in a ring have no other honest neighbors.

    The c colluding sites leave c gaps in the ring. The s sites fill j of the gaps, with at least one
    site in each, and the other honest sites fill any of the remaining gaps.
    """
    t = n - c - s
    ways = [
        log_binomial(c, j) + log_binomial(s - 1, j - 1) + log_binomial(t + c - j - 1, t)
        for j in range(1, min(s, c) + 1)
    ]
    return log_sum(ways) - log_binomial(n - 1, n - c) - log_binomial(n - c, s)


def log2_chance_of_parts(n: int, c: int, rings: int = N_RINGS) -> float:
    """Bound the chance that honest sites fall into parts that share no mask, as a power of 2."""
    honest = n - c
    parts = [
        log_binomial(honest, s) + rings * log_chance_apart(n, c, s)
        for s in range(1, honest // 2 + 1)
    ]
    return log_sum(parts) / log(2)


def error_of_sum(bits: int, n_sites: int, looseness: float, units: np.ndarray) -> float:
    """Return the largest error of a total in a ring, relative to the typical total in its unit."""
    rng = np.random.default_rng(0)
    parts = rng.standard_normal((n_sites, len(units))) * units
    exact = np.sum(parts.astype(np.longdouble), axis=0)
    ring = Ring.for_exponent(bits, frexp(looseness * float(np.abs(parts).sum(axis=0).max()))[1])
    total = ring.encode(np.zeros(len(units)))
    for part in parts:
        add_elements(total, ring.encode(part, lambda n: rng.integers(0, 2**64, n, np.uint64)), bits)
    return float((np.abs(ring.decode(total) - exact) / (units * n_sites**0.5)).max())


def drawn(robust: bool) -> dict[str, np.ndarray]:
    """Draw four sites' rows with common directions, one more per site, and outliers if ``robust``."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1200, 5)) * [5, 4, 3, 2, 1] @ rng.standard_normal((5, 100))
    rows += rng.standard_normal(rows.shape)
    if robust:
        rows[rng.random(rows.shape) < 0.02] += 100
    parts = np.array_split(rows, 4)
    for part in parts:
        part += 10 * np.outer(rng.standard_normal(len(part)), rng.standard_normal(100))
    return {f"site-{i}": part for i, part in enumerate(parts)}


def costs(model: Any) -> tuple[int, int, int, int]:
    """Return a fit's rounds, its additional messages, and the bytes sent without and with masks."""
    found = []
    for secure in (False, True):
        with Federation.local(drawn(isinstance(model, RobustPCA)), secure=secure) as fed:
            found.append(clone(model).set_params(random_state=0).fit(fed))
    plain, masked = found
    asked = {entry["question"] for entry in masked.run_.history}
    before = sum(e.bytes for e in plain.run_.ledger if e.direction == "up" and e.question in asked)
    own = [e for e in masked.run_.ledger if e.direction == "up" and e.site == "site-0"]
    more = sum(e.field == ENVELOPE for e in own) - masked.run_.rounds
    return masked.run_.rounds, more, before, masked.run_.bytes_up


def clinics() -> dict[str, np.ndarray]:
    """Assign patients to clinics by tumor size."""
    rows = load_breast_cancer().data
    by_size = np.split(np.argsort(rows[:, 0], kind="stable"), [60, 200, 420])
    names = ("north", "east", "south", "west")
    return {name: rows[patients] for name, patients in zip(names, by_size, strict=True)}


def main() -> None:
    print("| colluding, of 1000 sites | chance that honest sites fall into parts |")
    print("|---|---|")
    for c in (333, 500, 600, 667):
        print(f"| {c} | below 2^{ceil(log2_chance_of_parts(1000, c))} |")
    print()
    print("| sites | ring | bound | units | largest error |")
    print("|---|---|---|---|---|")
    alike, unlike = np.ones(500), np.logspace(-6, 6, 500)
    for n_sites in (3, 1000):
        for bits, looseness, units in (
            (NARROW, 1, alike),
            (NARROW, 128, alike),
            (WIDE, 128, alike),
            (NARROW, 128, unlike),
            (WIDE, 128, unlike),
        ):
            error = error_of_sum(bits, n_sites, looseness, units)
            bound = "tight" if looseness == 1 else "128 times too large"
            spread = "equal" if units is alike else "1e-6 to 1e6"
            print(f"| {n_sites} | {bits} bits | {bound} | {spread} | {error:.0e} |")
    print()
    print("| fit | rounds | additional messages | kB from sites | under masks |")
    print("|---|---|---|---|---|")
    for name, model in (
        *((f"`{each}`", FederatedPCA(5, solver=each)) for each in SOLVERS),
        ("`lanczos`, `scale=True`", FederatedPCA(5, solver="lanczos", scale=True)),
        ("`PersonalizedPCA(5, 1)`", PersonalizedPCA(5, 1)),
        ("`RobustPCA(9)`", RobustPCA(9)),
    ):
        rounds, sizes, before, after = costs(model)
        more = f"{after / 1000:.0f} ({100 * (after / before - 1):+.1f} %)"
        print(f"| {name} | {rounds} | {sizes} | {before / 1000:.0f} | {more} |")
    print()
    print("| colluding | single answers | totals |")
    print("|---|---|---|")
    for colluding in ((), ("east", "south"), ("north", "east", "south")):
        found = audit(
            clinics(), 5, solvers="lanczos", refits=0, scale=True, secure=True, colluding=colluding
        )
        cells = []
        for listener in ("seen", "summed"):
            error = found.best("lanczos", listener, "west").error
            cells.append(f"{error:.2f}" if error > 0.01 else f"{error:.0e}")
        print(f"| {', '.join(colluding) or 'nobody'} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
