"""Read a run's masked answers as far as a coordinator can, with or without sites that collude.

A site that colludes reveals the secrets that it shares with its neighbors. With these, the coordinator
can remove that site's masks from the other sites' answers. The masks between honest sites remain, and
cancel only in the sum over all honest sites. If masks remain, the attacker reads masked elements as
numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from fedpca.arrays import Arrays
from fedpca.privacy.masks import masked, neighbors
from fedpca.privacy.rings import Ring, subtract
from fedpca.privacy.secure_sum import add_masked, decoded, from_header
from fedpca.protocol.message import Message
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import find_question
from fedpca.site.guard import Agreement
from fedpca.site.masking import MaskKeys
from fedpca.site.site import Site

# by site, and then by the neighbor that shares the secret
Secrets = Mapping[str, Mapping[str, bytes]]


class MaskedRound(NamedTuple):
    """How the answers to one question are masked."""

    rings: Mapping[str, Ring]
    context: bytes
    fields: tuple[str, ...]  # of the answer, without what is masked beside it

    @classmethod
    def of(cls, request: Message) -> MaskedRound | None:
        """Return how a request asks for masks, or None if it asks only how large the answer is."""
        question = find_question(request.header["question"])
        rings = from_header(question, request.header["mask"])
        fields = tuple(question.answers)
        return cls(rings, request.digest, fields) if rings.keys() >= {*fields} else None

    def sum(
        self, answers: Mapping[str, Arrays], sites: Collection[str], secrets: Secrets
    ) -> Arrays:
        """Return the sum of some sites' answers as numbers, after removing the known masks.

        ``secrets`` holds the secrets of the sites that collude. If any masks remain, the numbers
        mean nothing.
        """
        total: Arrays = {}
        for site in sites:
            elements = self._without_known(site, answers[site], secrets)
            if total:
                add_masked(total, elements, self.rings)
            else:
                total = elements
        return decoded(total, {name: self.rings[name] for name in self.fields})

    def _without_known(self, site: str, answer: Arrays, secrets: Secrets) -> Arrays:
        elements = {name: np.array(answer[name]).view(np.uint64) for name in self.rings}
        told = {name: each[site] for name, each in secrets.items() if site in each}
        nothing = {name: np.zeros_like(array) for name, array in elements.items()}
        for name, mask in masked(site, told, self.context, nothing, self.rings).items():
            subtract(elements[name], mask, self.rings[name].bits)
        return elements


def secrets_of(site: Site) -> dict[str, bytes]:
    """Return the secrets that a site shares with its neighbors, which it reveals if it colludes."""
    plan = RunPlan.from_bytes(site.recall(Agreement).plan.tobytes())
    keys = site.recall(MaskKeys)
    if keys.seed is None or keys.secrets is None:
        return {}
    others = neighbors(site.name, sorted(plan.sites), keys.seed.tobytes())
    return dict(zip(others, (row.tobytes() for row in keys.secrets), strict=True))
