"""Mask a site's answers in a run whose plan asks for secure sums.

When the plan is declared, the site offers a new public key. Once it has seen the offers of all sites in
the plan, it shares a secret with each of its neighbors, and masks every answer that is summed
(`fedpca.privacy.masks`). The keys are part of the site's memory of the run, so they outlive the process
and are forgotten when the run ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpca.arrays import Array, Arrays, Dimensions
from fedpca.errors import PolicyRefused
from fedpca.privacy.masks import (
    KEY_BYTES,
    masked,
    neighbors,
    new_private_key,
    pair_secrets,
    public_key_of,
    words_of,
)
from fedpca.privacy.offers import (
    Offer,
    check_offer,
    seed_of,
    text_to_sign,
    unpack_offers,
)
from fedpca.privacy.rings import Ring
from fedpca.privacy.secure_sum import (
    MIN_SITES,
    ONE_SITE,
    Words,
    encoded,
    from_header,
    no_answer,
    sizes_of,
)
from fedpca.protocol.message import Message
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question
from fedpca.rows.hashes import secret_of
from fedpca.rows.in_memory import Rows
from fedpca.site.guard import Keys

_ROUND, _NO_ANSWER = b"fedpca rounding", b"fedpca no answer"


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

    def agree(
        self, run: str, plan: RunPlan, site: str, arrays: Mapping[str, Array], keys: Keys | None
    ) -> MaskKeys:
        """Return the keys with the secrets that follow from the offers of all sites.

        Refuse offers that are not from the plan's sites, and a second set of offers that differs from
        the first.
        """
        offers = unpack_offers(sorted(plan.sites), arrays)
        if offers.get(site) != Offer.from_bytes(self.offer.tobytes()):
            raise PolicyRefused(f"the offered keys do not include the key of this site, {site!r}")
        for name, offer in offers.items():
            check_offer(run, plan, name, offer, None if keys is None else keys.verify)
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

    def secrets_of(self, plan: RunPlan, site: str, rows: Rows) -> MaskSecrets:
        """Return the secrets from which the masks of a run are computed."""
        if self.seed is None or self.secrets is None:
            raise PolicyRefused("the sites have not exchanged keys, so no answer can be masked")
        others = neighbors(site, sorted(plan.sites), self.seed.tobytes())
        shared = dict(zip(others, (row.tobytes() for row in self.secrets), strict=True))
        return MaskSecrets(shared, self.private.tobytes(), secret_of(rows))


@dataclass(frozen=True)
class MaskSecrets:
    """The secrets that a site shares with its neighbors, by name, and two that only it knows."""

    shared: Mapping[str, bytes]
    private: bytes
    of_rows: bytes  # the same in each run, so that the same rows give the same bits


@dataclass(frozen=True)
class AnswerMasks:
    """How a site masks its answer to one question."""

    question: Question
    request: Message
    rings: Mapping[str, Ring]
    site: str
    secrets: MaskSecrets

    @classmethod
    def asked_for(
        cls, question: Question, request: Message, site: str, secrets: MaskSecrets
    ) -> AnswerMasks:
        """Return the masks that a request asks for, or refuse the request."""
        if "mask" not in request.header:
            raise PolicyRefused(
                f"the declared plan has secure sums, but question {question.name!r} asks for "
                "an answer without masks"
            )
        rings = from_header(question, request.header["mask"])
        return cls(question, request, rings, site, secrets)

    @property
    def tells_size(self) -> bool:
        """Return whether the size of the answer is asked for, with the answer or without it."""
        return bool(self.rings.keys() & sizes_of(self.question).keys())

    @property
    def is_size(self) -> bool:
        """Return whether only the size of the answer is asked for."""
        return self.rings.keys().isdisjoint(self.question.answers)

    def of(self, answer: Arrays, asked: Arrays, dimensions: Dimensions) -> Arrays:
        """Return an answer, its size, or both, under masks.

        If the answer is empty, because the site cannot answer, return random elements instead.
        """
        digest, own = self.request.digest, self.secrets
        if answer:
            about = _ROUND + self.question.name.encode() + self.request.arrays_digest
            elements = encoded(self.question, self.rings, answer, _words(own.of_rows, about))
        else:
            shapes = self.question.answer_shapes(asked, dimensions)
            elements = no_answer(self.rings, shapes, _words(own.private, _NO_ANSWER + digest))
        hidden = masked(self.site, self.secrets.shared, digest, elements, self.rings)
        return {name: array.view(np.int64) for name, array in hidden.items()}


def _words(secret: bytes, context: bytes) -> Words:
    """Return a source of random words that only this site knows."""
    return lambda about, n_words: words_of(secret, context + about, n_words)


def _array(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)
