"""Define what a site signs, so that others can prove what it was asked and what it answered.

A site writes each question and answer to its ledger, a hash chain, and signs the statement

    domain | SHA-256(request) | commitment | head,    commitment = SHA-256(salt | SHA-256(answer))

``head`` is the chain value of the line that records the answer, so it commits to all earlier lines.
The salt is random and stays with the site and the coordinator. Without a salt, a reader of a model file
could guess an answer, such as a small count, and confirm the guess by the answer's digest.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from fedpca.errors import MessageError

PROOF_DOMAIN = b"fedpca signed answer, version 1\0"
NO_HEAD = "0" * 64  # before the first line, and for an answer that could not be recorded
HEAD_BYTES, SALT_BYTES = 32, 16
PROOF_FIELDS = ("head", "digest_in", "commitment", "signature", "key")  # of a proof in a run record


@dataclass(frozen=True)
class Proof:
    """What a site sends with an answer: the head of its ledger, a salt, and a signature."""

    head: str
    salt: str
    signature: bytes

    def to_bytes(self) -> bytes:
        """Return the proof as bytes; their number depends only on the kind of key."""
        return bytes.fromhex(self.head) + bytes.fromhex(self.salt) + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> Proof:
        """Restore a proof from the bytes that `to_bytes` returned."""
        if len(data) <= HEAD_BYTES + SALT_BYTES:
            raise MessageError(f"a proof of {len(data)} bytes is too short to hold a signature")
        salt_end = HEAD_BYTES + SALT_BYTES
        return cls(data[:HEAD_BYTES].hex(), data[HEAD_BYTES:salt_end].hex(), data[salt_end:])


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def commitment(salt: str, digest_out: str) -> str:
    """Return a digest of an answer; only those who know the salt can check a guess against it."""
    return digest(bytes.fromhex(salt) + bytes.fromhex(digest_out))


def statement(digest_in: str, committed: str, head: str) -> bytes:
    """Return the bytes that a site signs."""
    return PROOF_DOMAIN + b"".join(bytes.fromhex(part) for part in (digest_in, committed, head))


def check_proofs(proofs: object) -> dict[str, dict[str, str]]:
    """Return the proofs of a run record by site, or raise a ValueError if they are malformed."""
    if not isinstance(proofs, dict):
        raise ValueError("the proofs must be a table")
    for site, proof in proofs.items():
        is_table = isinstance(proof, dict) and set(proof) == set(PROOF_FIELDS)
        if not is_table or not all(
            isinstance(text, str) and re.fullmatch(r"(?:[0-9a-f]{2}){32,132}", text)
            for text in proof.values()
        ):
            raise ValueError(f"the proof of site {site!r} is malformed")
        if any(len(proof[name]) != 64 for name in PROOF_FIELDS if name != "signature"):
            raise ValueError(f"the proof of site {site!r} is malformed")
    return proofs
