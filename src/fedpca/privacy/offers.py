"""Exchange public keys for one attempt of a run, so that every pair of sites shares a secret.

A site offers a new public key, and signs it together with the run and the roster of the plan. So a
coordinator cannot put a key of its own in the place of a site's, and cannot use an offer twice. The
hash of all offers is the salt of every secret. So sites that were shown different offers share no
secret, and their masks do not cancel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import MessageError, PolicyRefused
from fedpca.privacy.masks import KEY_BYTES
from fedpca.protocol.plan import NO_KEY, RunPlan

MAX_IDENTITY_BYTES = 512  # of a public key in DER form
MAX_SIGNATURE_BYTES = 512
_DOMAIN = b"fedpca offer"

Verify = Callable[[bytes, bytes, bytes], bool]  # of a public key in DER form, a signature, and data


@dataclass(frozen=True)
class Offer:
    """A site's public key for the exchange, and the site's signature.

    A site in the coordinator's own process has no key to sign with; then identity and signature are
    empty.
    """

    public: bytes
    identity: bytes = b""  # the site's own public key, in DER form
    signature: bytes = b""

    def to_arrays(self) -> Arrays:
        """Return the offer as message fields."""
        parts = {"public": self.public, "identity": self.identity, "signature": self.signature}
        return {name: np.frombuffer(data, np.uint8) for name, data in parts.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Offer:
        """Restore an offer from message fields; refuse fields that cannot be one."""
        limits = {
            "public": KEY_BYTES,
            "identity": MAX_IDENTITY_BYTES,
            "signature": MAX_SIGNATURE_BYTES,
        }
        for name, most in limits.items():
            array = arrays.get(name)
            if array is None or array.dtype != np.uint8 or array.ndim != 1 or array.size > most:
                raise MessageError(f"field {name!r} is not part of an offer of a key")
        offer = cls(*(arrays[name].tobytes() for name in limits))
        if len(offer.public) != KEY_BYTES:
            raise MessageError(f"the offered key has {len(offer.public)} bytes, not {KEY_BYTES}")
        return offer


def text_to_sign(run: str, plan: RunPlan, public: bytes) -> bytes:
    """Return what a site signs when it offers a key for an attempt of a run."""
    return b"\0".join([_DOMAIN, run.encode(), roster_hash(plan).encode(), public])


def roster_hash(plan: RunPlan) -> str:
    """Return a hash of the names and the key fingerprints of a plan's sites."""
    lines = [f"{name}\0{key}\n" for name, key in sorted(plan.sites.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def seed_of(run: str, offers: Mapping[str, Offer]) -> bytes:
    """Return the hash of all offers, which is the same for all sites that were shown the same."""
    digest = hashlib.sha256(run.encode())
    for name, offer in sorted(offers.items()):
        for part in (name.encode(), offer.public, offer.identity, offer.signature):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def check_offers(
    run: str, plan: RunPlan, offers: Mapping[str, Offer], verify: Verify | None
) -> None:
    """Refuse offers that are not from exactly the sites of the plan, with the plan's keys."""
    if set(offers) != set(plan.sites):
        odd = sorted(set(offers) ^ set(plan.sites))
        raise PolicyRefused(f"the offered keys are not those of the plan's sites: {odd[0]!r}")
    for name, key in plan.sites.items():
        if key == NO_KEY and verify is None:
            continue
        offer = offers[name]
        if hashlib.sha256(offer.identity).hexdigest() != key:
            raise PolicyRefused(f"the key offered for site {name!r} is not from the plan's key")
        text = text_to_sign(run, plan, offer.public)
        if verify is None or not verify(offer.identity, offer.signature, text):
            raise PolicyRefused(f"the key offered for site {name!r} is not signed by that site")


def pack_offers(offers: Mapping[str, Offer]) -> Arrays:
    """Return all offers as message fields."""
    return {
        f"{i}/{part}": array
        for i, (_, offer) in enumerate(sorted(offers.items()))
        for part, array in offer.to_arrays().items()
    }


def unpack_offers(names: list[str], arrays: Mapping[str, Array]) -> dict[str, Offer]:
    """Restore the offers of these sites from message fields."""
    parts = ("public", "identity", "signature")
    return {
        name: Offer.from_arrays({p: arrays[f"{i}/{p}"] for p in parts if f"{i}/{p}" in arrays})
        for i, name in enumerate(sorted(names))
    }
