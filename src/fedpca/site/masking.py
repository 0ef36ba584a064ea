"""Mask a site's answers in a run whose plan asks for secure sums.

When the plan is declared, the site offers a new public key. Once it has seen the offers of all sites in
the plan, it shares a secret with each of its neighbors, and masks every answer that is summed
(`fedpca.privacy.masks`). The keys are part of the site's memory of the run, so they outlive the process
and are forgotten when the run ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import PolicyRefused
from fedpca.privacy.masks import (
    KEY_BYTES,
    neighbors,
    new_private_key,
    pair_secrets,
    public_key_of,
)
from fedpca.privacy.offers import (
    Offer,
    check_offers,
    seed_of,
    text_to_sign,
    unpack_offers,
)
from fedpca.privacy.secure_sum import BEYOND, BOUND, MIN_SITES, ONE_SITE, masked_answer
from fedpca.protocol.message import Message
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question
from fedpca.site.guard import Keys


@dataclass(frozen=True)
class MaskKeys:
    """A site's keys for the masks of a run; the site remembers them.

    Until the offers of all sites are known, there are no secrets.
    """

    private: Array  # (32,)
    offer: Array  # the site's own public key, identity, and signature, each after its length
    seed: Array | None = None  # (32,), the hash of all offers
    secrets: Array | None = None  # (m, 32), shared with the neighbors, in the order of their names

    @classmethod
    def new(cls, run: str, plan: RunPlan, keys: Keys | None) -> MaskKeys:
        """Return new keys, with a signed offer if the site has a key to sign with."""
        if len(plan.sites) < MIN_SITES:
            raise PolicyRefused(ONE_SITE)
        private = new_private_key()
        public = public_key_of(private)
        offer = Offer(public)
        if keys is not None:
            if keys.sign is None:
                raise PolicyRefused(
                    "secure sums across machines need signatures, but this site has no key to sign with"
                )
            offer = Offer(public, keys.identity, keys.sign(text_to_sign(run, plan, public)))
        return cls(_array(private), _array(offer.to_bytes()))

    def own_offer(self) -> Offer:
        """Return the offer that the site made."""
        return Offer.from_bytes(self.offer.tobytes())

    def agree(
        self, run: str, plan: RunPlan, site: str, arrays: Mapping[str, Array], keys: Keys | None
    ) -> MaskKeys:
        """Return the keys with the secrets that follow from the offers of all sites.

        Refuse offers that are not from the plan's sites, and a second set of offers that differs from
        the first.
        """
        offers = unpack_offers(sorted(plan.sites), arrays)
        if offers.get(site) != self.own_offer():
            raise PolicyRefused(f"the offered keys do not include the key of this site, {site!r}")
        check_offers(run, plan, offers, None if keys is None else keys.verify)
        seed = seed_of(run, offers)
        if self.seed is not None:
            if self.seed.tobytes() != seed:
                raise PolicyRefused(
                    "other keys were offered for this run before; if a site has lost its memory, start "
                    "over with a new journal"
                )
            return self
        others = neighbors(site, sorted(plan.sites), seed)
        publics = [offers[other].public for other in others]
        secrets = pair_secrets(self.private.tobytes(), publics, seed)
        packed = np.frombuffer(b"".join(secrets), np.uint8).reshape(-1, KEY_BYTES)
        return MaskKeys(self.private, self.offer, _array(seed), packed)

    def secrets_of(self, plan: RunPlan, site: str) -> MaskSecrets:
        """Return the secrets from which the masks of a run are computed."""
        if self.seed is None or self.secrets is None:
            raise PolicyRefused("the sites have not exchanged keys, so no answer can be masked")
        others = neighbors(site, sorted(plan.sites), self.seed.tobytes())
        shared = dict(zip(others, (row.tobytes() for row in self.secrets), strict=True))
        return MaskSecrets(shared, self.private.tobytes())


@dataclass(frozen=True)
class MaskSecrets:
    """The secrets that a site shares with its neighbors, by name, and one that only it knows."""

    shared: Mapping[str, bytes]
    private: bytes


@dataclass(frozen=True)
class AnswerMasks:
    """How a site masks its answer to one question."""

    question: Question
    request: Message
    site: str
    secrets: MaskSecrets

    def __post_init__(self) -> None:
        if "mask" not in self.request.header:
            raise PolicyRefused(
                f"the declared plan has secure sums, but question {self.question.name!r} asks for "
                "an answer without masks"
            )

    @property
    def is_bound(self) -> bool:
        """Return whether only the size of the answer is asked for."""
        return bool(self.request.header["mask"] == BOUND)

    @property
    def is_tried(self) -> bool:
        """Return whether the bound is only tried, so that the answer may be requested again."""
        mask = self.request.header["mask"]
        return isinstance(mask, dict) and BEYOND in mask

    @property
    def key(self) -> tuple[int, bytes]:
        """Return the round, and a hash of the question that does not depend on the masks."""
        header = {k: v for k, v in self.request.header.items() if k != "mask"}
        return int(header["round"]), replace(self.request, header=header).digest

    def of(self, answer: Arrays) -> Arrays:
        """Return an answer, or only its size, under masks."""
        return masked_answer(
            self.question,
            self.request,
            answer,
            self.site,
            self.secrets.shared,
            self.secrets.private,
        )


def _array(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)
