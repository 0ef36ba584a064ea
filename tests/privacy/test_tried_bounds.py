"""Bounds that are tried instead of asking for sizes: no digit is lost, and no site is given away."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpca import Federation, Policy, RobustPCA, Site
from fedpca.privacy.secure_sum import BEYOND, BOUND, from_header
from fedpca.protocol.message import compose, decode, encode
from fedpca.protocol.question import _REGISTRY, question
from fedpca.testing import ScriptedEngine
from support import low_rank_rows

HELD = {}  # by site, what it answers in each round
NAMES = ("a", "b", "c")
JUMPS = (0, 0.5, 9, -9, -9, 0)  # of sizes, as powers of 10


@pytest.fixture(scope="module", autouse=True)
def held():
    """A question about what each site holds, which remembers how often it was asked."""

    @question(
        asks={"number": "int64"},
        answers={"narrow": "float64 r c", "wide": "float64 r", "whole": "int64 r"},
        remembers=True,
    )
    def held_for_tests(site, number):
        site.memory["count"] = site.memory.get("count", np.zeros((), np.int64)) + 1
        assert site.memory["count"] == number + 1
        return HELD[site.name][int(number)]

    yield held_for_tests
    del _REGISTRY["held_for_tests"]


def drawn(rng, names, exponents):
    """Draw what each site answers in each round; ``exponents`` are the sizes, by round and site."""
    return {
        name: [
            {
                "narrow": rng.normal(size=(3, 2)) * 10.0 ** each[i],
                "wide": rng.normal(size=3) * 10.0 ** each[i] * [1e-6, 1, 1e6],
                "whole": rng.integers(-(2**40), 2**40, 3),
            }
            for each in exponents
        ]
        for i, name in enumerate(names)
    }


def sums_over(fed, n_rounds):
    asked = _REGISTRY["held_for_tests"]
    return fed.run(
        lambda fed, _: [fed.sum(asked, number=np.int64(t)) for t in range(n_rounds)],
        identity={"program": "held", "parameters": {}},
        seed=0,
    )


def assert_are_sums(totals):
    for t, total in enumerate(totals):
        answers = [rounds[t] for rounds in HELD.values()]
        for name in ("narrow", "wide", "whole"):
            due = np.sum([each[name] for each in answers], axis=0)
            largest = max(np.abs(each[name]).max() for each in answers)
            atol = 0 if name == "whole" else 1e-12 * largest
            np.testing.assert_allclose(total[name], due, rtol=0, atol=atol)
        # columns in other units keep their digits
        sizes = np.max([np.abs(each["wide"]) for each in answers], axis=0)
        due = np.sum([each["wide"] for each in answers], axis=0)
        assert (np.abs(total["wide"] - due) <= 1e-12 * sizes).all()


def hold(exponents, names=NAMES, seed=0):
    HELD.clear()
    HELD.update(drawn(np.random.default_rng(seed), names, exponents))


def sites_of(**options):
    return {name: Site(np.zeros((1, 1)), name=name, **options) for name in HELD}


@given(
    exponents=st.lists(st.lists(st.integers(-12, 12), min_size=12, max_size=12), max_size=6),
    n_sites=st.integers(2, 12),
    seed=st.integers(0, 2**32),
)
@example([[0] * 12, [0] * 12, [0] * 12], 12, 0)
@example([[12] * 12, [-12] * 12, [12] * 12, [-12] * 12, [-12] * 12], 3, 0)
@example([[0] * 12, [0] * 11 + [9], [0] * 12], 12, 0)
def test_sums_are_exact_however_sizes_change_between_rounds(exponents, n_sites, seed):
    hold(exponents, [f"site-{i}" for i in range(n_sites)], seed)
    with Federation.local(sites_of(), secure=True) as fed:
        totals = sums_over(fed, len(exponents))
    assert_are_sums(totals)


@pytest.mark.parametrize("factor", [1.5, 3.0, 20.0, 300.0])
def test_totals_do_not_overflow_while_each_site_stays_below_the_bound(factor):
    hold([[0] * 20] * 12, [f"site-{i}" for i in range(20)])
    for rounds in HELD.values():
        for t, answer in enumerate(rounds):
            answer["narrow"], answer["wide"] = (
                np.abs(answer[name]) * factor**t for name in ("narrow", "wide")
            )
    with Federation.local(sites_of(), secure=True) as fed:
        assert_are_sums(sums_over(fed, 12))


def jumps():
    """What sites hold if all sizes change, or only that of the last site."""
    sizes = np.cumsum(JUMPS)
    return [[size if i == 2 or t != 1 else 0 for i in range(3)] for t, size in enumerate(sizes)]


def kind_of(request):
    mask = request.header.get("mask")
    if mask is None:
        return ""
    return BOUND if mask == BOUND else "tried" if BEYOND in mask else "given"


def test_sizes_are_asked_for_only_at_first_and_where_a_bound_fails():
    hold(jumps())
    asked = []

    def note(reply):
        moment = (reply.round, kind_of(reply.request))
        if moment[1] and moment not in asked:
            asked.append(moment)
        return reply.answer

    with Federation(ScriptedEngine(sites_of(), note), secure=True) as fed:
        assert_are_sums(sums_over(fed, len(JUMPS)))
    assert [kind for number, kind in asked if number == 1] == [BOUND, "given"]
    assert [kind for number, kind in asked if number == 2] == ["tried"]
    for number in (3, 4):  # far above, and then far below
        assert [kind for each, kind in asked if each == number] == ["tried", BOUND, "given"]
    # two bounds in a row have failed
    assert [kind for number, kind in asked if number > 4] == [BOUND, "given"] * 2
    assert fed.record.bytes_up == fed.record.ledger.bytes_up
    assert fed.record.bytes_down == fed.record.ledger.bytes_down


class Crash(BaseException):
    """An end as by a signal, which nothing catches."""


@pytest.mark.slow
@pytest.mark.parametrize("site", ["a", "c"])
def test_a_run_that_crashed_at_any_message_goes_on_with_the_same_bits(site, tmp_path):
    hold(jumps())
    places = []

    def note(reply):
        places.append((reply.round, kind_of(reply.request)))
        return reply.answer

    with Federation(ScriptedEngine(sites_of(), note), secure=True) as fed:
        whole = sums_over(fed, len(JUMPS))
    for number, place in enumerate(dict.fromkeys(each for each in places if each[1])):
        journal = tmp_path / f"{number}"

        def crash(reply, place=place):
            if (reply.round, kind_of(reply.request)) == place and reply.site == site:
                raise Crash
            return reply.answer

        engine = ScriptedEngine(sites_of(), crash, journal=journal)
        with pytest.raises(Crash):
            sums_over(Federation(engine, journal=journal, secure=True), len(JUMPS))
        again = Federation.local(sites_of(), journal=journal, secure=True)
        for one, other in zip(sums_over(again, len(JUMPS)), whole, strict=True):
            assert {name: array.tobytes() for name, array in one.items()} == {
                name: array.tobytes() for name, array in other.items()
            }
        assert list(again.record.ledger) == list(fed.record.ledger)
        assert again.record.bytes_up == fed.record.bytes_up


def test_a_site_that_restarts_before_any_message_masks_as_before(tmp_path):
    """Also between a bound that failed and the message that asks for sizes."""
    hold(jumps())
    n_asked = len(JUMPS) + 6

    for number in range(2, n_asked):
        folder, seen, engines = tmp_path / f"{number}", [], []

        def restart(reply, number=number, folder=folder, seen=seen, engines=engines):
            if kind_of(reply.request) and reply.site == "b":
                seen.append(reply)
                if len(seen) == number:
                    again = Site(np.zeros((1, 1)), name="b", store=folder)
                    again.is_in_process, again.reserved_by = True, engines[0].engine
                    engines[0].engine._sites["b"] = again
            return reply.answer

        engines.append(ScriptedEngine(sites_of(store=folder), restart))
        with Federation(engines[0], secure=True) as fed:
            assert_are_sums(sums_over(fed, len(JUMPS)))
        assert len(seen) >= number


def test_a_site_beyond_a_bound_hides_itself_and_what_the_others_sent():
    hold([[0, 0, 0], [0, 0, 9]])
    answers = {}

    def keep(reply):
        if kind_of(reply.request) == "tried":
            answers[reply.site] = decode(reply.answer).arrays
            answers["request"] = reply.request
        return reply.answer

    with Federation(ScriptedEngine(sites_of(), keep), secure=True) as fed:
        assert_are_sums(sums_over(fed, 2))
    rings = from_header(_REGISTRY["held_for_tests"], answers.pop("request").header["mask"])
    totals = {name: sum(each[name].view(np.uint64) for each in answers.values()) for name in rings}
    assert totals[BEYOND][0] != 0
    assert totals[BEYOND][1] == 0  # the masks cancel
    for name in ("narrow", "wide", "whole"):
        others = sum(rings[name].encode(HELD[site][1][name]) for site in ("a", "b"))
        # the upper halves of what is left of a small number would be zeros or ones
        for rest in (totals[name], totals[name] - others):
            upper = (rest >> np.uint64(48)).ravel().astype(int)
            assert np.unique(upper[(upper > 0) & (upper < 2**16 - 1)]).size > upper.size // 2


class Asking:
    """An engine that asks one site some more at a message of a run."""

    declares = True

    def __init__(self, sites, ask):
        self.sites, self.ask_more, self.names = sites, ask, list(sites)

    def fingerprints(self):
        return {}

    def ask(self, names, request, timeout):
        for name in names:
            reply = self.sites[name].answer(decode(encode(request)))
            if name == "a":
                self.ask_more(self.sites["a"], request, reply)
            yield name, reply

    def close(self): ...


@pytest.mark.parametrize("has_folder", [False, True], ids=["no folder", "folder"])
def test_an_answer_is_masked_again_once_and_under_a_second_tried_bound_never(tmp_path, has_folder):
    X = low_rank_rows(150, 12, 2, share=0.03, size=20.0, noise=0.01)[0]
    policy = Policy(allow=("robust",), require=("secure",))
    store = tmp_path if has_folder else None
    sites = {
        name: Site(part, name=name, policy=policy, store=store)
        for name, part in zip(NAMES, np.array_split(X, 3), strict=True)
    }
    found = []

    def with_mask(request, mask):
        return compose({**request.header, "mask": mask}, request.arrays)

    def bytes_of(reply):
        assert "error" not in reply.header, reply.header
        return {name: array.tobytes() for name, array in reply.arrays.items()}

    def ask(site, request, reply):
        if kind_of(request) != "tried" or request.header["question"] != "hard_round" or found:
            return
        found.append(request)
        mask = request.header["mask"]
        finer = {k: [b, f + 1] if b == 128 or f else [b, f] for k, (b, f) in mask.items()}
        assert bytes_of(site.answer(with_mask(request, finer))) == bytes_of(reply)
        moved = {**request.arrays, "center": request.arrays["center"] + 1}
        other = compose({**request.header, "mask": BOUND}, moved)
        assert bytes_of(site.answer(other)) == bytes_of(reply)
        sizes = with_mask(request, BOUND)
        assert bytes_of(site.answer(sizes)) == bytes_of(site.answer(sizes))
        assert set(site.answer(sizes).arrays) == {"narrow", "wide"}
        given_ = {name: ring for name, ring in mask.items() if name != BEYOND}
        last = bytes_of(site.answer(with_mask(request, given_)))
        assert set(last) == set(given_)
        wider = {k: [b, f - 1] if b == 128 or f else [b, f] for k, (b, f) in given_.items()}
        for mask in (wider, finer, BOUND, request.header["mask"]):
            assert bytes_of(site.answer(with_mask(request, mask))) == last

    RobustPCA(2, random_state=0).fit(Federation(Asking(sites, ask), secure=True))
    assert found
    assert not [key for site in sites.values() for key in site.memory if "Open" in key]
