"""A coordinator that chooses rings, scales, and directions learns totals, and nothing of one site."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.audit.lying_masks import (
    MaskedLiar,
    energies,
    energy_by_refusals,
    energy_by_steps,
    total_of,
)
from fedpca.errors import InputError, MessageError
from fedpca.privacy.rings import NARROW, WHOLE, WIDE, Ring
from fedpca.privacy.secure_sum import SIZES, ZERO, sizes_of
from fedpca.protocol.question import _REGISTRY, question
from fedpca.solvers.standardize import standardize
from fedpca.testing import ScriptedEngine
from support import asks_for_size

STRICT = Policy(require=("secure",))
D = 5
RNG = np.random.default_rng(0)
ROWS = {"a": 3 * RNG.normal(size=(40, D)), "b": RNG.normal(size=(30, D))}
HELD = {}


@pytest.fixture(scope="module", autouse=True)
def held():
    """A question about what each site holds in a round."""

    @question(
        asks={"number": "int64"},
        answers={"narrow": "float64 r c, large", "wide": "float64 r, large", "whole": "int64 r"},
        remembers=True,
    )
    def held_for_tests(site, number):
        site.memory["count"] = site.memory.get("count", np.zeros((), np.int64)) + 1
        assert site.memory["count"] == number + 1
        return HELD[site.name][int(number)]

    yield held_for_tests
    del _REGISTRY["held_for_tests"]


def asks_of(rows, policy=STRICT):
    return {name: Site(x, name=name, policy=policy).answer_bytes for name, x in rows.items()}


def test_no_refusal_shows_one_sites_sum_of_squares():
    assert energy_by_refusals(asks_of(ROWS), D) is None


def test_no_step_of_a_total_shows_the_largest_sum_of_squares():
    """With numbers rounded to the nearest one, both attacks are exact to the last digit."""
    found = energy_by_steps(asks_of(ROWS), D)
    assert abs(found / (ROWS["a"] ** 2).sum() - 1) > 1e-2


def outside(replies):
    """What a coordinator reads of single answers without any key."""
    return {
        name: (reply.header, reply.n_bytes, {k: a.shape for k, a in reply.arrays.items()})
        for name, reply in replies.items()
    }


def heard_from(rows):
    """Everything outside of masks in runs with rings and scales of all sizes."""
    liar, heard = MaskedLiar(asks_of(rows)), []
    for scale in (1e-150, 1e-100, 1e-10, 1.0, 1e100):
        for fraction in (-1100, 0, 126, 1200):
            replies = energies(liar, D, scale, Ring(WIDE, fraction))
            heard.append(outside(replies))
            again = liar.again(
                "standardize",
                sizes_of(standardize),
                mean=np.zeros(D),
                scale=np.full(D, scale),
                n_products=np.int64(0),
            )
            heard.append(outside(again))
            Z = np.eye(D)[:, :1]
            heard.append(
                outside(liar.ask("covariance_product", {"Y": Ring(NARROW, fraction or 1)}, Z=Z))
            )
    return heard


def test_nothing_outside_of_masks_depends_on_the_numbers_of_a_site(caplog):
    caplog.set_level(logging.CRITICAL, "fedpca.site")
    with np.errstate(all="ignore"):
        usual = heard_from(ROWS)
        for factor in (1e-80, 1e60):  # with the latter and small scales, squares overflow
            assert heard_from({**ROWS, "a": factor * ROWS["a"]}) == usual
    assert not [each for replies in usual for each, _, _ in replies.values() if "error" in each]


def hold(*answers):
    """Let each site hold an answer in each round; return the names of the sites."""
    HELD.clear()
    HELD.update({f"site-{i}": each for i, each in enumerate(answers)})
    return {name: np.ones((1, 1)) for name in HELD}


def one(value, whole=0):
    return {
        "narrow": np.full((1, 1), value),
        "wide": np.full(1, value),
        "whole": np.full(1, whole, np.int64),
    }


WHOLE_NUMBERS = st.integers(-(2**50), 2**50)


@given(a=WHOLE_NUMBERS, b=WHOLE_NUMBERS, moved=WHOLE_NUMBERS, fraction=st.integers(1, 900))
@example(a=2**50, b=-(2**50), moved=2**49, fraction=70)
def test_a_total_in_any_ring_depends_on_the_sites_only_through_their_sum(a, b, moved, fraction):
    totals = []
    rings = {"narrow": Ring(NARROW, fraction), "wide": Ring(WIDE, fraction), "whole": WHOLE}
    for first, second in ((a, b), (a - moved, b + moved)):
        rows = hold([one(float(first))], [one(float(second))])
        liar = MaskedLiar(asks_of(rows, None))
        liar.begin()
        replies = liar.ask("held_for_tests", rings, number=np.int64(0))
        totals.append(
            {name: total_of(replies, name, ring).tobytes() for name, ring in rings.items()}
        )
        assert not total_of(replies, ZERO, WHOLE)
    assert totals[0] == totals[1]


def sums_over(fed, n_rounds):
    asked = _REGISTRY["held_for_tests"]
    return fed.run(
        lambda fed, _: [fed.sum(asked, number=np.int64(t)) for t in range(n_rounds)],
        identity={"program": "held", "parameters": {}},
        seed=0,
    )


def drawn(rng, exponent):
    return {
        "narrow": rng.normal(size=(3, 2)) * 10.0**exponent,
        "wide": rng.normal(size=3) * 10.0**exponent * [1e-4, 1, 1e4],
        "whole": rng.integers(-(2**40), 2**40, 3),
    }


def assert_are_sums(totals):
    for t, total in enumerate(totals):
        answers = [rounds[t] for rounds in HELD.values()]
        for name in ("narrow", "wide", "whole"):
            due = np.sum([each[name] for each in answers], axis=0)
            largest = max(np.abs(each[name]).max() for each in answers)
            atol = 0 if name == "whole" else 1e-12 * largest
            np.testing.assert_allclose(total[name], due, rtol=0, atol=atol)
        sizes = np.max([np.abs(each["wide"]) for each in answers], axis=0)
        due = np.sum([each["wide"] for each in answers], axis=0)
        assert (np.abs(total["wide"] - due) <= 1e-12 * sizes).all()


EXPONENTS = st.one_of(st.integers(-12, 12), st.integers(-299, 299))


@given(
    exponents=st.lists(st.lists(EXPONENTS, min_size=5, max_size=5), max_size=5),
    n_sites=st.integers(2, 5),
    seed=st.integers(0, 2**32),
)
@example([[0] * 5, [0] * 5, [9] + [0] * 4, [-9] * 5], 3, 0)
@example([[299] * 5, [-299] * 5, [299, -299, 0, 0, 0]], 5, 0)
def test_sums_are_exact_for_any_sizes_and_however_they_change(exponents, n_sites, seed):
    rng = np.random.default_rng(seed)
    rows = hold(*([drawn(rng, each[i]) for each in exponents] for i in range(n_sites)))
    with Federation.local(rows, secure=True) as fed:
        assert_are_sums(sums_over(fed, len(exponents)))
    assert fed.record.bytes_up == fed.record.ledger.bytes_up
    assert fed.record.bytes_down == fed.record.ledger.bytes_down


def test_sizes_alone_are_asked_for_once_and_an_answer_again_if_its_ring_does_not_fit():
    rng = np.random.default_rng(0)
    rows = hold(*([drawn(rng, e) for e in (0, 0, 9 * i, -9, -9)] for i in range(3)))
    asked = []

    def note(reply):
        if "mask" in reply.request.header and reply.site == "site-0":
            mask = reply.request.header["mask"]
            is_sized = not set(mask).isdisjoint(SIZES.values())
            kind = "size" if asks_for_size(reply.request) else "sized" if is_sized else "answer"
            asked.append((reply.round, kind))
        return reply.answer

    with Federation(ScriptedEngine(rows, note), secure=True) as fed:
        assert_are_sums(sums_over(fed, 5))
    first = [(1, "size"), (1, "answer"), (2, "sized")]
    jumps = [(3, "sized"), (3, "answer"), (4, "sized"), (4, "answer")]
    assert asked == [*first, *jumps, (5, "sized")]


@pytest.mark.parametrize("other", ["changed", "gathered", "next round"])
def test_after_a_size_only_the_same_answer_is_given(other):
    rows = hold(*[[one(1.0), one(2.0)]] * 2)
    liar = MaskedLiar(asks_of(rows, None))
    liar.begin()
    liar.ask("held_for_tests", sizes_of(_REGISTRY["held_for_tests"]), number=np.int64(0))
    if other == "changed":
        replies = liar.again("squares", {"squares": Ring(WIDE, 1)}, mean=np.zeros(1))
    elif other == "gathered":
        replies = liar.again("column_names")
    else:
        replies = liar.ask("column_names")
    for reply in replies.values():
        assert reply.header["error"] == "PolicyRefused"
        assert "size of a different answer" in reply.header["text"]


# sites that cannot answer


@pytest.mark.parametrize("policy", [None, STRICT], ids=["open", "strict"])
def test_a_site_that_cannot_answer_hides_that_until_the_run_ends(policy, caplog):
    liar = MaskedLiar(asks_of({**ROWS, "a": 1e60 * ROWS["a"]}, policy))
    rings, Z = {"Y": Ring(NARROW, 7)}, np.eye(D)[:, :1]
    scales = {"mean": np.zeros(D), "scale": np.full(D, 1e-150), "n_products": np.int64(0)}
    with np.errstate(all="ignore"):
        first = energies(liar, D, 1e-150, Ring(WIDE, 0))
        again = liar.again("standardize", {"energy": Ring(WIDE, 0)}, **scales)
        later = liar.ask("covariance_product", rings, Z=Z)
    for replies in (first, again, later):
        assert not any("error" in reply.header for reply in replies.values())
        assert total_of(replies, ZERO, WHOLE)
    for name, reply in first.items():
        assert reply.arrays["energy"].tobytes() == again[name].arrays["energy"].tobytes()
    told = [each.getMessage() for each in caplog.records if each.name == "fedpca.site"]
    assert "site a cannot answer question standardize, and hides that under its masks" in told


def test_a_run_with_a_site_that_cannot_answer_ends_for_everybody_without_a_name(held, caplog):
    @question(asks={"x": "float64"}, answers={"y": "float64"})
    def fails_for_tests(site, x):
        if site.name == "site-1":
            raise InputError("the rows are too large for x")
        return {"y": x}

    rows = hold([], [], [])
    try:
        with (
            Federation.local(rows, secure=True) as fed,
            pytest.raises(MessageError, match="could not answer") as refused,
        ):
            fed.run(
                lambda fed, _: fed.sum(fails_for_tests, x=np.float64(1)),
                identity={"program": "fails", "parameters": {}},
                seed=0,
            )
    finally:
        del _REGISTRY["fails_for_tests"]
    assert "site-1" not in str(refused.value)
    assert "too large" in caplog.text


def test_rows_that_need_a_person_are_still_refused_by_name():
    rows = {name: x.copy() for name, x in ROWS.items()}
    rows["b"][0, 0] = np.nan
    with pytest.raises(InputError, match="site 'b'"):
        FederatedPCA(2).fit(Federation.local(rows, secure=True))


def test_every_question_of_a_solver_has_answers_of_known_lengths():
    """Otherwise, a site that cannot answer would not know what its answer should look like."""
    for each in _REGISTRY.values():
        if (
            each.package != "fedpca"
            or each.verb != "sum"
            or not any(asked.dtype == "float64" for asked in each.asks.values())
        ):
            continue
        known = {"d", "triangle", *(n for asked in each.asks.values() for n in asked.dimensions)}
        for declared in each.answers.values():
            unknown = {n for n in declared.dimensions if not n.isdigit()} - known
            assert not unknown, f"{each.name}: {unknown}"
