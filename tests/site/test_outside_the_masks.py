"""What anyone sees of a masked answer does not depend on the site's numbers, whatever is asked for.

A coordinator that lies chooses the rings of a masked answer, and the numbers in the question. What is
outside the masks is whether the site answers at all, with which words, and how long its message is.
"""

from __future__ import annotations

import numpy as np
import pytest

from admissible import policy_of
from fedpca import FederatedPCA, Federation, Site
from fedpca.audit.lying_masks import MaskedLiar
from fedpca.engines.base import EngineWrapper
from fedpca.engines.local import LocalEngine
from fedpca.privacy.rings import NARROW, WHOLE, WIDE, Ring
from fedpca.protocol.message import compose, encode

NAMES = ("north", "south", "east")
RING_SIZES = (0, 64, 128)  # whole numbers that are no fraction bits
FRACTION_BITS = (-60, 0, 45, 90)
N_MASKED = 6  # messages with masks in the first rounds, some of which ask for sizes


class Heard(Exception):
    """The liar has heard what it asked for."""


class Lying(EngineWrapper):
    """An engine that is honest until the nth masked question, which it changes for one site."""

    declares = True

    def __init__(self, sites, nth, change):
        super().__init__(LocalEngine(sites))
        self._nth, self._change, self.seen = nth, change, None

    def ask(self, names, request, timeout):
        if "mask" in request.header:
            if not self._nth:
                self.seen = _visible(self.sites["north"].answer(self._change(request)))
                raise Heard
            self._nth -= 1
        yield from self.engine.ask(names, request, timeout)


def with_bits(bits):
    """Ask for masks with other fraction bits."""

    def change(request):
        mask = _with_bits(request.header["mask"], bits)
        return compose({**request.header, "mask": mask}, request.arrays)

    return change


def with_scale(scale):
    """Ask for rows in another scale, if the question has one."""

    def change(request):
        arrays = dict(request.arrays)
        if "scale" in arrays:
            arrays["scale"] = np.full_like(arrays["scale"], scale)
        return compose(request.header, arrays)

    return change


def _with_bits(mask, bits):
    """What a message says about masks, with other fraction bits wherever there are any."""
    if isinstance(mask, dict):
        return {key: _with_bits(each, bits) for key, each in mask.items()}
    if isinstance(mask, list | tuple):
        return [_with_bits(each, bits) for each in mask]
    is_bits = isinstance(mask, int) and mask not in RING_SIZES
    return bits if is_bits else mask


def _visible(reply):
    header = {key: value for key, value in reply.header.items() if key != "run"}
    shapes = {name: (array.dtype, array.shape) for name, array in reply.arrays.items()}
    return header, shapes, len(encode(reply)) - len(str(reply.header["run"]))


def seen(factor, nth, change, **parameters):
    """What is visible of the answer to the nth masked question, if a site's rows are so large."""
    rows = np.random.default_rng(0).normal(size=(3, 30, 4))
    rows[0] *= factor
    sites = {n: Site(r, name=n, policy=policy_of()) for n, r in zip(NAMES, rows, strict=True)}
    engine = Lying(sites, nth, change)
    try:
        FederatedPCA(2, random_state=0, **parameters).fit(Federation(engine, secure=True))
    except Heard:
        return engine.seen
    return None


def assert_nothing_shows(change, solver):
    questions = set()
    for nth in range(N_MASKED):
        parameters = {"solver": solver, "scale": True}
        first, *others = (seen(2.0**k, nth, change, **parameters) for k in (0, 20, -20))
        assert first is not None
        assert all(other == first for other in others), nth
        questions.add(first[0]["question"])
    assert len(questions) == 3


@pytest.mark.parametrize("fraction_bits", FRACTION_BITS)
@pytest.mark.parametrize("solver", ["covariance", "lanczos"])
def test_no_masks_show_how_large_the_rows_are(solver, fraction_bits):
    assert_nothing_shows(with_bits(fraction_bits), solver)


@pytest.mark.parametrize("scale", [1e-72, 1e-150])
@pytest.mark.parametrize("solver", ["covariance", "lanczos"])
def test_no_limit_of_numbers_shows_how_large_the_rows_are(solver, scale):
    assert_nothing_shows(with_scale(scale), solver)


def answers_beyond_all_directions(factor):
    """What is visible of products with more directions than a site may show, in a tiny scale."""
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=(20, 30)) for name in NAMES}
    rows["north"] *= factor  # a large one makes the squares overflow in that scale
    sites = {n: Site(r, name=n, policy=policy_of()) for n, r in rows.items()}
    liar = MaskedLiar({name: site.answer_bytes for name, site in sites.items()})
    liar.begin()
    liar.ask("column_names")
    wide = dict.fromkeys(("weight", "total", "present"), Ring(WIDE, 0))
    features, missing = np.empty(0, np.uint8), np.int64(0)
    liar.ask("count_and_sum", {**wide, "n": WHOLE}, features=features, missing=missing)
    liar.ask("squares", {"squares": Ring(WIDE, 0)}, mean=np.zeros(30))
    frame = {"mean": np.zeros(30), "scale": np.full(30, 1e-60), "n_products": np.int64(0)}
    liar.ask("standardize", {"energy": Ring(WIDE, 0)}, **frame)
    Z = np.linalg.qr(rng.normal(size=(30, 11)))[0]
    return _visible(liar.ask("covariance_product", {"Y": Ring(NARROW, 1)}, Z=Z)["north"])


def test_no_limit_of_directions_shows_how_large_the_rows_are():
    small, large = (answers_beyond_all_directions(factor) for factor in (1.0, 2.0**60))
    assert small[0]["error"] == "PolicyRefused"
    assert large == small
