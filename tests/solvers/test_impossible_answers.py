"""A site whose answer is impossible is lost by name, and the result is that of the honest sites."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, PersonalizedPCA, RobustPCA
from fedpca.errors import MessageError, QuorumLost
from fedpca.linalg.dense import sine_of_angle
from fedpca.protocol import question as question_module
from fedpca.protocol.message import MARK, PREFIX_BYTES, VERSION, compose, decode, encode
from fedpca.protocol.question import find_question
from fedpca.solvers.catalogue import PERSONALIZED, ROBUST, SOLVERS
from fedpca.solvers.standardize import count_and_sum
from fedpca.testing import ScriptedEngine
from support import gapped_rows, low_rank_rows

RNG = np.random.default_rng(3)
SITES = {name: gapped_rows(RNG, n, 6, 2) for name, n in (("a", 40), ("rogue", 30), ("c", 50))}
# one direction that all sites share, and one that each has for itself
PERSONAL_SITES = {
    name: RNG.standard_normal((n, 6)) * (0.01 + 5 * np.eye(6)[0] + 2 * np.eye(6)[1 + i])
    for i, (name, n) in enumerate((("a", 40), ("rogue", 30), ("c", 50)))
}
# rows of low rank with outliers, whose components robust solvers find exactly
ROBUST_SITES = dict(
    zip(SITES, np.split(low_rank_rows(150, 20, 2, share=0.03)[0], [50, 90]), strict=True)
)
SLOW, SLOW_TOL = ("least-squares", "dcf"), 1e-4  # solvers that never settle to the last digits
FITS = {
    **{name: partial(FederatedPCA, 2, solver=name, random_state=0) for name in SOLVERS},
    "auto rank": partial(FederatedPCA, "auto", solver="covariance", random_state=0),
    "auto rank, lanczos": partial(FederatedPCA, "auto", solver="lanczos", random_state=0),
    "scale": partial(FederatedPCA, 2, scale=True, random_state=0),
    "objective": partial(
        FederatedPCA, 2, solver=type(SOLVERS["faps"])(stop="objective"), tol=1e-15, random_state=0
    ),
    **{
        f"personalized {name}": partial(
            PersonalizedPCA, 1, 1, solver=name, random_state=0, max_rounds=3000
        )
        for name in PERSONALIZED
    },
    "personalized gather": partial(PersonalizedPCA, 1, 1, gather=True, random_state=0),
    **{
        f"robust {name}": partial(
            RobustPCA,
            **({"n_components": 2} if solver.needs_rank else {"max_components": 3}),
            solver=name,
            random_state=0,
            max_rounds=3000,
            **({"tol": SLOW_TOL} if name in SLOW else {}),
        )
        for name, solver in ROBUST.items()
    },
}
SHOWN_WITH = {
    **dict.fromkeys(("subspace-iteration", "local-power", "faps", "objective"), "lanczos"),
    **{f"personalized {name}": "personalized power" for name in PERSONALIZED},
    "personalized gather": "personalized power",
    **{f"robust {name}": "robust auto" for name in ROBUST},
}
del SHOWN_WITH["personalized power"], SHOWN_WITH["robust auto"]


def rogue_federation(change, quorum=2, sites=SITES):
    """Three sites, one of which changes its answers: ``change(question, message)`` to bytes or None."""

    def script(reply):
        if reply.site != "rogue":
            return reply.answer
        return change(reply.question, decode(reply.answer)) or reply.answer

    return Federation(ScriptedEngine(sites, script), quorum=quorum)


def with_field(question, field, values):
    """Change a field of the answers to one question; ``values`` maps what it is to what is sent."""

    def change(asked, message):
        if asked != question or field not in message.arrays:
            return None
        sent = np.asarray(values(message.arrays[field]))
        return encode(compose(message.header, {**message.arrays, field: sent}))

    return change


def impossible(words):
    """Return a function that makes an array break what these words mean."""

    def spoil(array):
        if array.dtype == np.uint8:
            return np.frombuffer(b"{", np.uint8)
        if array.dtype == np.int64:
            return -1 - np.abs(array)
        if "explained" in words:
            return 1e9 * (1 + np.abs(array))
        if {"squares", "nonnegative", "semidefinite"} & set(words):
            return -1 - np.abs(array)
        return 2 * array if "orthonormal" in words else np.full_like(array, 1e306)

    return spoil


def honest(sites):
    """Return all sites but the rogue."""
    return {name: rows for name, rows in sites.items() if name != "rogue"}


def fields_asked(make, sites):
    """Return the questions that a fit asks, each with every field of its answers that has numbers."""
    fields = {}

    def watch(reply):
        arrays = decode(reply.answer).arrays
        fields.update(
            {(reply.question, name): None for name, array in arrays.items() if array.size}
        )
        return reply.answer

    make().fit(Federation(ScriptedEngine(sites, watch)))
    return list(fields)


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_a_site_that_breaks_what_a_field_means_is_lost_and_the_others_go_on(name):
    families = {"robust": ROBUST_SITES, "personalized": PERSONAL_SITES}
    make, sites = FITS[name], families.get(name.split()[0], SITES)
    reference = make().fit(honest(sites))
    by_objective = name == "objective" or name.startswith("personalized")  # the square of an angle
    tol = 100 * SLOW_TOL if name.split()[-1] in SLOW else 1e-4 if by_objective else 1e-7
    fields = fields_asked(make, sites)
    if name in SHOWN_WITH:  # what the other fit asks as well is shown with that one
        others = fields_asked(FITS[SHOWN_WITH[name]], sites)
        fields = fields[:1] + [asked for asked in fields[1:] if asked not in others]
    for question, field in fields:
        spoil = impossible(find_question(question).words[field])
        model = make().fit(rogue_federation(with_field(question, field, spoil), sites=sites))
        (lost,) = model.run_.lost
        assert (lost["site"], lost["question"]) == ("rogue", question), field
        assert model.run_.sites == ("a", "c")
        assert model.n_samples_ == reference.n_samples_
        assert set(model.run_.influence) <= {"a", "c"}
        assert len(model.components_) == len(reference.components_)
        assert sine_of_angle(reference.components_.T, model.components_.T) < tol, field
        np.testing.assert_allclose(
            model.explained_variance_, reference.explained_variance_, rtol=tol, err_msg=field
        )


def nested(depth):
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (b"{", "not a list of strings"),
        (b"5", "not a list of strings"),
        (b'"abcdef"', "not a list of strings"),
        (b"[1, 2, 3, 4, 5, 6]", "not a list of strings"),
        (b'["\\ud800", "b", "c", "d", "e", "f"]', "not a list of strings"),
        (nested(100_000), "not a list of strings"),
        (b'["a"]', "1 column names for 6 columns"),
        (b'["a", "a", "c", "d", "e", "f"]', "the same name for two columns"),
    ],
    ids=["json", "number", "text", "numbers", "surrogate", "deep", "few", "alike"],
)
@pytest.mark.parametrize("order", ["arc", "rac"])
def test_column_names_that_are_none_lose_the_site(names, said, order):
    change = with_field("column_names", "features", lambda _: np.frombuffer(names, np.uint8))
    sites = {name: SITES[name] for letter in order for name in SITES if name[0] == letter}
    model = FederatedPCA(2, solver="covariance").fit(rogue_federation(change, sites=sites))
    assert [lost["site"] for lost in model.run_.lost] == ["rogue"]
    assert said in model.run_.lost[0]["reason"]


def test_a_field_name_that_is_no_string_loses_the_site():
    def renamed(question, message):
        data = encode(message)
        text = data[PREFIX_BYTES:].replace(b'["n"', b"[1  ", 1)
        prefix = struct.unpack("<4sIIIQ", data[:PREFIX_BYTES])
        return struct.pack("<4sIIIQ", MARK, VERSION, zlib.crc32(text), *prefix[3:]) + text

    model = FederatedPCA(2, solver="covariance").fit(rogue_federation(renamed))
    (lost,) = model.run_.lost
    assert lost["reason"] == (
        "site 'rogue', round 2, while counting rows and adding up columns: the message cannot be "
        "read: TypeError"
    )


@pytest.mark.parametrize(
    ("solver", "question", "field", "value", "said"),
    [
        ("lanczos", "count_and_sum", "n", -5, "negative counts"),
        ("lanczos", "count_and_sum", "n", 2**62, "counts above"),
        ("lanczos", "count_and_sum", "weight", 1e9, "a weight that is not its row count"),
        ("lanczos", "count_and_sum", "n", 10**9, "a weight that is not its row count"),
        ("lanczos", "count_and_sum", "n", 0, "a weight that is not its row count"),
        ("average", "summarize_about", "n", 1e9, "a row count other than in an earlier round"),
        ("lanczos", "count_and_sum", "total", 1.7e308, "at most"),
        ("lanczos", "count_and_sum", "total", 1e75, "a mean beyond 1e\\+68"),
        ("covariance", "count_and_sum", "total", 1.7e308, "at most"),
        ("lanczos", "standardize", "energy", 1e149, "at most"),
        ("lanczos", "covariance_product", "Y", 1e6, "exceeds the sum of squares"),
        ("merge", "summarize_rows", "singular_values", 1e300, "at most"),
        ("merge", "summarize_rows", "singular_values", 1e3, "more energy along its directions"),
        ("merge", "summarize_rows", "n", -30.0, "negative"),
        ("merge", "summarize_rows", "tail", 1e9, "left out more"),
        ("average", "summarize_about", "singular_values", 1e300, "at most"),
        ("tsqr", "triangular_factor", "rank", 2**40, "not those of a factor of rank"),
        ("covariance", "explained_energy", "explained", 1e9, "explains more"),
    ],
)
def test_a_number_that_cannot_be_loses_the_site_that_sent_it_and_no_other(
    solver, question, field, value, said
):
    change = with_field(question, field, lambda array: np.full_like(array, value))
    with pytest.raises(QuorumLost, match=f"site 'rogue'.*{said}"):
        FederatedPCA(2, solver=solver).fit(rogue_federation(change, quorum=3))
    model = FederatedPCA(2, solver=solver).fit(rogue_federation(change))
    reference = FederatedPCA(2, solver=solver).fit(honest(SITES))
    assert [lost["site"] for lost in model.run_.lost] == ["rogue"]
    assert sine_of_angle(reference.components_.T, model.components_.T) < 1e-8


def test_a_reason_that_would_change_a_terminal_is_made_plain():
    def shouting(question, message):
        header = {
            **message.header,
            "error": "SiteFailed",
            "text": "\x1b[2J\ud800 gone" + "!" * 9999,
        }
        return encode(compose(header, {}))

    model = FederatedPCA(2).fit(rogue_federation(shouting))
    (lost,) = model.run_.lost
    assert r"\x1b[2J\ud800 gone!!!" in lost["reason"]
    assert len(lost["reason"]) <= 2000
    assert json.dumps(lost["reason"]).isascii()


@pytest.mark.parametrize("change", ["weight", "n", "present"])
def test_totals_that_contradict_each_other_are_refused_in_secure_sums(change):
    """Nobody can be blamed, since only the total can be read."""
    rows = {name: own.copy() for name, own in SITES.items()}
    rows["a"][0, 0] = np.nan
    true = count_and_sum.function

    def false(site, **asked):
        answer = dict(true(site, **asked))
        if site.name == "rogue":
            answer[change] = answer[change] + type(answer["n"])(10**6)
        return answer

    fed = Federation.local(rows, quorum=2, secure=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            question_module._REGISTRY,
            "count_and_sum",
            replace(count_and_sum, function=false, check=None),
        )
        with pytest.raises(MessageError, match=r"the total over all sites has .*weight"):
            FederatedPCA(2, solver="lanczos", missing="mean").fit(fed)


def test_values_with_more_weight_than_the_rows_lose_the_site():
    rows = {name: own.copy() for name, own in SITES.items()}
    rows["a"][0, 0] = np.nan
    change = with_field("count_and_sum", "present", lambda array: 10 * array)
    engine = rogue_federation(change, sites=rows)
    model = FederatedPCA(2, solver="lanczos", missing="mean").fit(engine)
    (lost,) = model.run_.lost
    assert lost["site"] == "rogue"
    assert "values with more weight than the rows" in lost["reason"]


def test_a_site_with_weights_may_have_any_weight():
    weights = {"a": np.full(40, 0.25), "rogue": np.full(30, 7.0), "c": np.full(50, 2.0)}
    run = FederatedPCA(2, solver="lanczos").fit(SITES, sample_weight=weights).run_
    assert run.lost == []
