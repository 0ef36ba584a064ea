"""Mask the answers of sites so that only their sum can be read.

    y_i = x_i + sum over neighbors j > i of m_ij - sum over neighbors j < i of m_ij

Two sites i and j exchange keys, and so share a secret that nobody else knows. For each question, both
derive the same mask m_ij from that secret. One site adds the mask and the other subtracts it. So all
masks cancel in the total, while the answer of a single site looks random. If a site does not answer,
nothing can be read, and the program starts again without that site. So no secret is ever handed over.

If there are up to 100 sites, every site is a neighbor of every other. If there are more, the sites are
arranged in 32 random rings, and a site's neighbors are the sites next to it in any ring. That is
enough: if half of 1000 sites collude, the chance that the honest sites do not stay connected is below
``2^-40``.

Source: Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning" (2017),
without secret shares; Bell et al., "Secure single-server aggregation with (poly)logarithmic overhead"
(2020), for the sparse graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from fedpca.errors import InputError

try:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
except ImportError:
    raise InputError(
        "secure sums require an extra; install it with: pip install 'fedpca[privacy]'"
    ) from None

from fedpca.arrays import Array, Arrays
from fedpca.privacy.rings import Ring, add_elements, subtract

MAX_ALL_PAIRS = 100  # up to this many sites, all are neighbors of each other
N_RINGS = 32  # random rings in which a site has two neighbors each
KEY_BYTES = 32
AES_BLOCK_BYTES = 16
MASKED_PART_BYTES = 1 << 17  # an answer is masked in parts of this size, each with all its masks
_PAIR = b"fedpca pair secret"
_ROUND = b"fedpca round key"


def new_private_key() -> bytes:
    """Return a new private key for the key exchange."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key_of(private: bytes) -> bytes:
    """Return the public key that belongs to a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def is_usable(public: bytes) -> bool:
    """Return whether a public key leads to secrets; with a key of low order, none would be secret."""
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def neighbors(name: str, roster: Sequence[str], seed: bytes) -> list[str]:
    """Return the sites that share masks with a site, in the order of their names.

    ``seed`` is the hash of all offers, so nobody can choose who the neighbors are.
    """
    if len(roster) <= MAX_ALL_PAIRS:
        return sorted(other for other in roster if other != name)
    # in an order of their own, so that all sites find the same rings
    names = tuple(sorted(roster))
    own, found = names.index(name), set[int]()
    for order in _random_rings(names, seed):
        place = int(np.flatnonzero(order == own)[0])
        found |= {int(order[place - 1]), int(order[(place + 1) % len(names)])}
    return [names[i] for i in sorted(found - {own})]


@lru_cache(maxsize=2)
def _random_rings(names: tuple[str, ...], seed: bytes) -> Array:
    """Return random orders of the sites, as an array of shape (rings, sites)."""
    drawn = b"".join(hashlib.shake_256(seed + each.encode()).digest(8 * N_RINGS) for each in names)
    # stable, so that equal draws, however unlikely, fall alike at all sites
    return np.argsort(np.frombuffer(drawn, ">u8").reshape(-1, N_RINGS), axis=0, kind="stable").T


def pair_secrets(private: bytes, publics: Sequence[bytes], seed: bytes) -> list[bytes]:
    """Return the secrets that a site shares with the sites that have these public keys.

    ``seed`` is the hash of all offers.
    """
    own = X25519PrivateKey.from_private_bytes(private)
    exchanged = [own.exchange(X25519PublicKey.from_public_bytes(public)) for public in publics]
    # salted with all offers: sites that were shown different offers share no secret, so their masks do
    # not cancel
    return [HKDF(SHA256(), KEY_BYTES, salt=seed, info=_PAIR).derive(each) for each in exchanged]


def masked(
    name: str,
    secrets: Mapping[str, bytes],
    context: bytes,
    fields: Arrays,
    rings: Mapping[str, Ring],
) -> Arrays:
    """Add the masks of all neighbors to encoded fields, in place, and return the fields.

    ``secrets`` holds the secret that the site shares with each neighbor, by name. ``context``
    identifies the question: the same question gets the same masks, and a different question gets
    different masks.
    """
    total = {field: np.asarray(elements, order="C") for field, elements in fields.items()}
    streams = [
        # of two sites, the first in the alphabet adds the mask, and the other subtracts it
        (add_elements if name < other else subtract, _stream(secret, _ROUND + context))
        for other, secret in secrets.items()
    ]
    zeros = memoryview(bytes(MASKED_PART_BYTES))
    buffer = bytearray(MASKED_PART_BYTES + AES_BLOCK_BYTES - 1)
    for field, array in total.items():
        bits = rings[field].bits
        part = array.reshape(-1, bits // 64)
        n_each = MASKED_PART_BYTES // (bits // 8)  # so many elements stay in the cache
        for start in range(0, len(part), n_each):
            block = part[start : start + n_each]
            mask = np.frombuffer(buffer, np.uint64, block.size).reshape(block.shape)
            for apply, stream in streams:
                stream.update_into(zeros[: block.nbytes], buffer)
                apply(block, mask, bits)
    return total


def words_of(secret: bytes, context: bytes, n_words: int) -> Array:
    """Return pseudorandom words that only the holders of the secret can compute."""
    stream = _stream(secret, context)
    return np.frombuffer(bytearray(stream.update(bytes(8 * n_words))), np.uint64)


def _stream(secret: bytes, context: bytes) -> CipherContext:
    """Return a cipher that turns zeros into pseudorandom bytes."""
    key = HKDFExpand(SHA256(), KEY_BYTES, info=context).derive(secret)
    # counting may begin at zero, because each context has a key of its own
    return Cipher(algorithms.AES(key), modes.CTR(bytes(AES_BLOCK_BYTES))).encryptor()
