"""Exchange public keys for one attempt of a run, so that every pair of sites shares a secret.

A site offers a new public key, and signs the key together with the run and the roster of the plan. So a
coordinator can neither replace a site's key with a key of its own nor use an offer twice. The hash of
all offers is the salt of every secret. So sites that were shown different offers share no secret, and
their masks do not cancel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import MessageError, PolicyRefused
from fedpca.privacy.masks import KEY_BYTES, is_usable
from fedpca.protocol.plan import NO_KEY, RunPlan

MAX_OFFER_BYTES = 1024
_DOMAIN = b"fedpca offer"

Verify = Callable[[bytes, bytes, bytes], bool]  # takes a key in DER form, a signature, and data


@dataclass(frozen=True)
class Offer:
    """A site's public key for the exchange, and the site's signature.

    A site in the coordinator's own process has no key to sign with, so its identity and its signature
    are empty.
    """

    public: bytes
    identity: bytes = b""  # the site's own public key, in DER form
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        """Encode the offer; each part follows its length."""
        parts = (self.public, self.identity, self.signature)
        return b"".join(len(part).to_bytes(2, "big") + part for part in parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Offer:
        """Decode an offer; refuse bytes that cannot be one."""
        parts, start = [], 0
        for _ in range(3):
            size = int.from_bytes(data[start : start + 2], "big")
            parts.append(data[start + 2 : start + 2 + size])
            start += 2 + size
        if start != len(data) or len(data) > MAX_OFFER_BYTES or len(parts[0]) != KEY_BYTES:
            raise MessageError("these bytes are not the offer of a key")
        return cls(*parts)

    @staticmethod
    def end(data: bytes, start: int) -> int:
        """Return where the offer that begins at ``start`` ends, or would end if it were whole."""
        for _ in range(3):
            start += 2 + int.from_bytes(data[start : start + 2], "big")
        return start


def text_to_sign(run: str, plan: RunPlan, public: bytes) -> bytes:
    """Return what a site signs when it offers a key for an attempt of a run."""
    return b"\0".join([_DOMAIN, run.encode(), roster_hash(plan).encode(), public])


def roster_hash(plan: RunPlan) -> str:
    """Return a hash of the names and the key fingerprints of a plan's sites."""
    lines = [f"{name}\0{key}\n" for name, key in sorted(plan.sites.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def seed_of(run: str, offers: Mapping[str, Offer]) -> bytes:
    """Return the hash of all offers; it is the same at all sites that were shown the same offers."""
    digest = hashlib.sha256(run.encode())
    for name, offer in sorted(offers.items()):
        for part in (name.encode(), offer.public, offer.identity, offer.signature):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def check_offer(run: str, plan: RunPlan, name: str, offer: Offer, verify: Verify | None) -> None:
    """Refuse an offer unless its key is usable, and signed with the key that the plan lists."""
    if not is_usable(offer.public):
        raise PolicyRefused(
            f"the key offered for site {name!r} has a low order, so it hides nothing"
        )
    key = plan.sites[name]
    if key == NO_KEY and verify is None:
        return
    if hashlib.sha256(offer.identity).hexdigest() != key:
        raise PolicyRefused(
            f"the key offered for site {name!r} is not signed with the key in the plan"
        )
    text = text_to_sign(run, plan, offer.public)
    if verify is None or not verify(offer.identity, offer.signature, text):
        raise PolicyRefused(f"the key offered for site {name!r} is not signed by that site")


def pack_offers(offers: Mapping[str, Offer]) -> Arrays:
    """Return all offers as one message field, in the order of the sites' names."""
    ordered = b"".join(offer.to_bytes() for _, offer in sorted(offers.items()))
    return {"offers": np.frombuffer(ordered, np.uint8)}


def unpack_offers(names: Sequence[str], arrays: Mapping[str, Array]) -> dict[str, Offer]:
    """Restore the offers of these sites, in the order of their names, from a message field."""
    data, start, offers = arrays.get("offers", np.empty(0, np.uint8)).tobytes(), 0, {}
    for name in names:
        end = Offer.end(data, start)
        try:
            offers[name] = Offer.from_bytes(data[start:end])
        except MessageError as error:
            raise MessageError(f"the key offered for site {name!r}: {error}") from None
        start = end
    if start != len(data):
        raise PolicyRefused(
            f"there must be {len(names)} offered keys, one for each site of the plan"
        )
    return offers
