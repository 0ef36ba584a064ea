"""A site that errs on purpose, in the way that its last argument names, from its third question on."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import fedpca  # noqa: F401 - registers the questions
from fedpca import Site
from fedpca.engines import credentials
from fedpca.engines.flower import envelope as wire
from fedpca.engines.flower import site_client as node
from fedpca.engines.flower.connection import Link
from fedpca.protocol.message import compose, decode, encode


def main(address, name, data, key, ca, folder, kind):
    site = Site(data, name=name, store=folder)
    Path(folder).mkdir(parents=True, exist_ok=True)
    kind, _, argument = kind.partition(":")

    def answer(request):
        asked = decode(request)
        print("asked", asked.header["round"], asked.header["question"], flush=True)
        reply = site.answer_bytes(request)
        if asked.header["round"] < 3:
            return reply
        if kind == "half":  # announces its answer, and never sends it
            wire.push_objects = lambda *args, **options: None
        return ERRORS.get(kind, lambda reply, _: reply)(reply, argument)

    if kind == "twice":
        send_once = node.send
        node.send = lambda *args: (send_once(*args), send_once(*args))
    link = Link(address, credentials.read_authority(Path(ca)))
    node.join(link, credentials.read_site_key(Path(key)), answer, lambda t: print(t, flush=True))


def changed(reply, change):
    message = decode(reply)
    return encode(compose(message.header, {k: change(v) for k, v in message.arrays.items()}))


def slow(reply, seconds):
    time.sleep(float(seconds))
    return reply


ERRORS = {
    "garbage": lambda reply, _: b"garbage",
    "huge": lambda reply, size: reply + np.random.default_rng(0).bytes(int(size)),
    "nan": lambda reply, _: changed(reply, lambda array: np.full_like(array, np.nan)),
    "shape": lambda reply, _: changed(reply, lambda array: array.reshape(-1)[:-1]),
    "slow": slow,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
