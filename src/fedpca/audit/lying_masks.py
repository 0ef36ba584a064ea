"""Search for one site's numbers by choosing the rings of masked answers, as a lying coordinator can.

The attacks hear several honest sites, and know no secret of theirs. They ask for the rows' sums of
squares at a scale s, in the same ring each time, and look for the scale at which something changes:

- ``by refusals``: a site refuses, because its sum of squares exceeds the ring. This would show the sum
  of the site that refuses.
- ``by steps``: the total changes from 0 to 1, in a ring without fractions. If each site rounded its
  sum of squares to the nearest whole number, this would show the largest sum of any site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedpca.arrays import Array
from fedpca.audit.liar import Ask
from fedpca.privacy.offers import Offer, pack_offers
from fedpca.privacy.rings import WHOLE, WIDE, Ring, add_elements
from fedpca.privacy.secure_sum import ZERO, to_header
from fedpca.protocol.message import Message, compose, decode, encode
from fedpca.protocol.plan import AGREE, DECLARE, NO_KEY, SECURE, RunPlan
from fedpca.protocol.question import find_question

N_STEPS = 56  # runs of a bisection, each of which halves the range
MAX_LOG_SCALE = 60.0  # sums of squares are searched for from 2^-120 to 2^120
WITHOUT_FRACTIONS = Ring(WIDE, 0)
SMALL = Ring(WIDE, WIDE - 2)  # holds numbers below 1


class MaskedLiar:
    """A coordinator that asks honest sites for masked answers in any rings."""

    def __init__(self, sites: Mapping[str, Ask], solver: str = "lanczos") -> None:
        self._sites, self._solver = dict(sites), solver
        self.n_runs = self._round = 0
        self._run = ""

    def begin(self) -> None:
        """Begin a run with secure sums among all sites."""
        self.n_runs += 1
        self._run, self._round = f"masks-{self.n_runs}.0", -1
        names = dict.fromkeys(self._sites, NO_KEY)
        plan = RunPlan(
            f"masks-{self.n_runs}",
            "FederatedPCA",
            {"solver": self._solver, "scale": True},
            names,
            privacy={SECURE: True},
        )
        declared = self._send(DECLARE, {"plan": np.frombuffer(plan.to_bytes(), np.uint8)})
        offers = {n: Offer.from_bytes(r.arrays["offer"].tobytes()) for n, r in declared.items()}
        self._round = -1
        self._send(AGREE, pack_offers(offers))

    def ask(
        self, question: str, rings: Mapping[str, Ring] | None = None, **arrays: Any
    ) -> dict[str, Message]:
        """Return each site's answer to the next question, in these rings, or without masks."""
        mask = None if rings is None else {"mask": to_header({**rings, ZERO: WHOLE})}
        return self._send(question, arrays, mask)

    def again(
        self, question: str, rings: Mapping[str, Ring] | None = None, **arrays: Any
    ) -> dict[str, Message]:
        """Return each site's answer to a question in the same round as the last question."""
        self._round -= 1
        return self.ask(question, rings, **arrays)

    def _send(
        self, question: str, arrays: Mapping[str, Any], more: Mapping[str, Any] | None = None
    ) -> dict[str, Message]:
        self._round += 1
        is_asked = question not in (DECLARE, AGREE)
        header = {
            "run": self._run,
            "round": self._round,
            "question": question,
            "verb": find_question(question).verb if is_asked else "gather",
            "n_sites": len(self._sites),
            "memory": 0,
            **(more or {}),
        }
        request = encode(compose(header, arrays))
        return {name: decode(ask(request)) for name, ask in self._sites.items()}


def total_of(replies: Mapping[str, Message], field: str, ring: Ring) -> Array:
    """Return the total of a field in all sites' answers, after the masks have canceled."""
    first, *others = (np.array(reply.arrays[field]).view(np.uint64) for reply in replies.values())
    for elements in others:
        add_elements(first, elements, ring.bits)
    return np.asarray(ring.decode(first))


def energy_by_refusals(sites: Mapping[str, Ask], d: int) -> float | None:
    """Return what the attack takes for the first site's sum of squares, or None without refusals."""

    def is_large(replies: dict[str, Message]) -> bool:
        return "error" in next(iter(replies.values())).header

    return _bisect(sites, d, SMALL, is_large, 1.0)


def energy_by_steps(sites: Mapping[str, Ask], d: int) -> float | None:
    """Return what the attack takes for the largest sum of squares of any site."""

    def is_large(replies: dict[str, Message]) -> bool:
        return bool(total_of(replies, "energy", WITHOUT_FRACTIONS))

    return _bisect(sites, d, WITHOUT_FRACTIONS, is_large, 0.5)


def _bisect(
    sites: Mapping[str, Ask],
    d: int,
    ring: Ring,
    is_large: Callable[[dict[str, Message]], bool],
    threshold: float,
) -> float | None:
    """Return the sum of squares whose multiple crosses a threshold; None if none of them does."""
    liar, low, high = MaskedLiar(sites), -MAX_LOG_SCALE, MAX_LOG_SCALE
    for _ in range(N_STEPS):
        middle = (low + high) / 2
        if is_large(energies(liar, d, 2.0**middle, ring)):
            low = middle
        else:
            high = middle
    return threshold * 4.0**low if low > -MAX_LOG_SCALE and high < MAX_LOG_SCALE else None


def energies(liar: MaskedLiar, d: int, scale: float, ring: Ring) -> dict[str, Message]:
    """Ask each site, in a new run, for the sum of squares of its rows divided by a scale."""
    liar.begin()
    liar.ask("column_names")
    wide = dict.fromkeys(("weight", "total", "present"), WITHOUT_FRACTIONS)
    features, missing = np.empty(0, np.uint8), np.int64(0)
    liar.ask("count_and_sum", {**wide, "n": WHOLE}, features=features, missing=missing)
    liar.ask("squares", {"squares": WITHOUT_FRACTIONS}, mean=np.zeros(d))
    scales = {"mean": np.zeros(d), "scale": np.full(d, scale)}
    return liar.ask("standardize", {"energy": ring}, **scales, n_products=np.int64(0))
