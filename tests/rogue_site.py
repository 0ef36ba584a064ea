"""A site that errs on purpose, in the way that its last argument names, from its third question on.

A lie about a field, such as ``field:n=-5`` or ``text:features=[[``, is told at every question. All
answers are signed as they should be, unless the way is about signatures.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
import signal
import struct
import sys
import time
import zlib
from functools import partial
from pathlib import Path

import numpy as np

import fedpca  # noqa: F401 - registers the questions
from fedpca import Site
from fedpca.engines import credentials
from fedpca.engines.flower import envelope as wire
from fedpca.engines.flower import site_client as node
from fedpca.engines.flower.connection import Link
from fedpca.privacy.masks import KEY_BYTES, new_private_key, public_key_of
from fedpca.privacy.offers import Offer
from fedpca.protocol.message import PREFIX_BYTES, compose, decode, encode
from fedpca.protocol.proof import NO_HEAD, digest
from fedpca.site import masking
from fedpca.site.answer_log import Recorded
from fedpca.site.guard import Keys


def main(address, name, data, key, ca, folder, kind):
    private = credentials.read_site_key(Path(key))
    keys = Keys(
        credentials.fingerprint(private.public_key()),
        credentials.signer_of,
        identity=credentials.to_der(private.public_key()),
        sign=partial(credentials.sign, private),
        verify=credentials.verify_der,
    )
    site = Site(data, name=name, store=folder, keys=keys)
    Path(folder).mkdir(parents=True, exist_ok=True)
    kind, _, argument = kind.partition(":")
    if kind == "low":  # offers a key of low order, signed as it should be
        masking.public_key_of = lambda private: bytes(KEY_BYTES)

    def answer(request):
        asked = decode(request)
        print("asked", asked.header["round"], asked.header["question"], flush=True)
        reply = site.answer_bytes(request)
        if asked.header["round"] < 3 and kind not in LIES:
            return reply
        if kind == "half":  # announces its answer, and never sends it
            wire.push_objects = lambda *args, **options: None
        return ERRORS.get(kind, lambda reply, _: reply)(reply, argument)

    def reply(request):
        head, salt = secrets.token_hex(32), secrets.token_hex(16)
        return Recorded(answer(request), digest(request), head, salt)

    if kind in SEALS:
        node._signed = SEALS[kind](argument, node._signed)
    if kind == "twice":
        send_once = node.send
        node.send = lambda *args: (send_once(*args), send_once(*args))
    link = Link(address, credentials.read_authority(Path(ca)))
    node.join(link, private, reply, lambda t: print(t, flush=True))


def changed(reply, change):
    message = decode(reply)
    return encode(compose(message.header, {k: change(v) for k, v in message.arrays.items()}))


def with_field(reply, argument, value_like):
    """Give a field another value, in each answer that has it."""
    message, (name, _, text) = decode(reply), argument.partition("=")
    if name not in message.arrays:
        return reply
    arrays = {**message.arrays, name: value_like(text, message.arrays[name])}
    return encode(compose(message.header, arrays))


def with_another_key(reply, _):
    """Offer another key for masks than the signed one."""
    message = decode(reply)
    if "offer" not in message.arrays:
        return reply
    offer = Offer.from_bytes(message.arrays["offer"].tobytes())
    other = dataclasses.replace(offer, public=public_key_of(new_private_key()))
    return encode(compose(message.header, {"offer": np.frombuffer(other.to_bytes(), np.uint8)}))


def without_names(reply, _):
    """Name each field by a number, and make the checksum right again."""
    text = re.sub(rb'\["\w*"', lambda field: b"[1".ljust(len(field[0])), reply[PREFIX_BYTES:])
    mark, version, _, *sizes = struct.unpack("<4sIIIQ", reply[:PREFIX_BYTES])
    return struct.pack("<4sIIIQ", mark, version, zlib.crc32(text), *sizes) + text


def slow(reply, seconds):
    time.sleep(float(seconds))
    return reply


def unsigned(_, signed):
    """Send answers as a site of an older fedpca does."""
    return lambda *given: (signed(*given)[0], None)


def altered(_, signed):
    """Change answers after they were signed, as someone on the way could."""

    def sealed(*given):
        data, proof = signed(*given)
        return changed(data, lambda array: array + 1), proof

    return sealed


def stolen(path, signed):
    """Sign with another site's key."""
    key = credentials.read_site_key(Path(path))
    return lambda own, *given: signed(key, *given)


def replayed(_, signed):
    """Send the first answer of a run to every question, with its own good signature."""
    first = []

    def sealed(*given):
        first.append(signed(*given))
        return first[0]

    return sealed


def truncated(size, signed):
    """Send only the first bytes of a proof."""

    def sealed(*given):
        data, proof = signed(*given)
        return data, proof[: int(size)]

    return sealed


def rewritten(_, signed):
    """Name another head of the ledger than the signed one."""

    def sealed(*given):
        data, proof = signed(*given)
        return data, secrets.token_bytes(32) + proof[32:]

    return sealed


def unrecorded(_, signed):
    """Say that no line of the ledger records the answers."""
    return lambda key, reply, request: signed(
        key, lambda given: dataclasses.replace(reply(given), head=NO_HEAD), request
    )


SEALS = {
    "unsigned": unsigned,
    "altered": altered,
    "stolen": stolen,
    "replayed": replayed,
    "truncated": truncated,
    "rewritten": rewritten,
    "unrecorded": unrecorded,
}
ERRORS = {
    "garbage": lambda reply, _: b"garbage",
    "huge": lambda reply, size: reply + np.random.default_rng(0).bytes(int(size)),
    "nan": lambda reply, _: changed(reply, lambda array: np.full_like(array, np.nan)),
    "shape": lambda reply, _: changed(reply, lambda array: array.reshape(-1)[:-1]),
    "slow": slow,
    "times": lambda reply, factor: changed(reply, lambda array: array * float(factor)),
    "names": without_names,
    "offer": with_another_key,
    "field": lambda reply, argument: with_field(
        reply, argument, lambda text, array: np.full_like(array, float(text))
    ),
    "text": lambda reply, argument: with_field(
        reply, argument, lambda text, _: np.frombuffer(text.encode(), np.uint8)
    ),
}
LIES = ("names", "field", "text", "offer", "low")

if __name__ == "__main__":
    # a process that is started in the background ignores interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(*sys.argv[1:])
