"""The coordinator knows how large an answer can be before it arrives."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, PersonalizedPCA, RobustPCA
from fedpca.protocol.message import MAX_BYTES, decode
from fedpca.protocol.question import _REGISTRY, ANSWER_HEADER_BYTES, question
from fedpca.solvers import SOLVERS
from fedpca.solvers.catalogue import PERSONALIZED, ROBUST
from fedpca.testing import ScriptedEngine
from support import gapped_rows

RNG = np.random.default_rng(0)
SHAPES = [(40, 6), (5, 30)]
MODELS = {
    **{name: lambda s=name: FederatedPCA(2, solver=s, random_state=0) for name in SOLVERS},
    **{
        f"{name}, automatic": lambda s=name: FederatedPCA("auto", solver=s, random_state=0)
        for name in SOLVERS
    },
    **{
        f"personalized {name}": lambda m=name: PersonalizedPCA(2, 1, solver=m, random_state=0)
        for name in PERSONALIZED
    },
    **{f"robust {name}": lambda m=name: RobustPCA(2, solver=m) for name in ROBUST},
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_no_answer_of_an_honest_site_is_larger_than_it_may_be(name, shape):
    answers = []

    def watch(reply):
        sizes = reply.request.max_answer_bytes, decode(reply.answer).n_bytes
        answers.append((reply.question, *sizes))
        return reply.answer

    sites = [gapped_rows(np.random.default_rng(i), *shape, 3, offset=i) for i in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MODELS[name]().set_params(max_rounds=3).fit(Federation(ScriptedEngine(sites, watch)))
    assert answers
    for asked, largest, size in answers:
        assert size <= largest, asked
        assert largest < MAX_BYTES, f"{asked} needs at_most"


def test_every_question_of_ours_bounds_its_answer():
    ours = [asked for asked in _REGISTRY.values() if asked.package == "fedpca"]
    for asked in ours:
        known = {"d", "triangle", *asked.at_most}
        known |= {name for field in asked.asks.values() for name in field.dimensions}
        names = {name for field in asked.answers.values() for name in field.dimensions}
        assert {name for name in names if not name.isdigit()} <= known, asked.name
    assert len(ours) > 20


def sized(answers, at_most=None, **asks):
    made = question(asks=asks, answers=answers, at_most=at_most)(_nothing)
    return lambda asked, **lengths: made.max_answer_bytes(asked, lengths) - ANSWER_HEADER_BYTES


def _nothing(site, **arrays):
    return {}


def test_the_declaration_bounds_the_answer():
    assert sized({"n": "int64", "Y": "float32 d 3"})({}, d=10) == 8 + 4 * 30
    assert sized({"T": "float64 triangle"})({}, d=10) == 8 * 55
    assert sized({"V": "float64 d r"}, {"r": "d"})({}, d=10) == 8 * 100
    assert sized({"V": "uint8 r"}, {"r": "99"})({}) == 99
    flips = sized({"T": "float64 flips d"}, {"flips": "n"}, n="int64")
    assert flips({"n": np.int64(7)}, d=10) == 8 * 70


def test_without_a_bound_the_limit_of_all_messages_holds():
    for answers in ({"V": "float64 d r"}, {"b": "uint8 bytes"}, {"T": "float64 triangle"}):
        assert sized(answers)({}) == MAX_BYTES - ANSWER_HEADER_BYTES
    assert sized({"T": "float64 triangle"})({}, d=10**6) == MAX_BYTES - ANSWER_HEADER_BYTES
    assert sized({"V": "float64 d r"})({}, d=0) == 0
