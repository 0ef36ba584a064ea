"""An order of questions admits exactly the sequences that it describes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca.errors import InputError, PolicyRefused
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import question
from fedpca.protocol.script import (
    _SCRIPTS,
    END,
    NEVER,
    Script,
    either,
    find_script,
    maybe,
    repeat,
    script,
    then,
)

LONGEST = 4  # questions in a sequence


@question(answers={"n": "int64"}, reads_rows=False)
def a(site):
    return {"n": 1}


@question(answers={"n": "int64"}, reads_rows=False)
def b(site):
    return {"n": 1}


@question(answers={"n": "int64"}, reads_rows=False)
def c(site):
    return {"n": 1}


LETTERS = {asked.name: asked for asked in (a, b, c)}


def short(words):
    return {word for word in words if len(word) <= LONGEST}


def joined(first, rest):
    return short(one + other for one in first for other in rest)


def repeated(words, most):
    found = {""}
    for _ in range(min(most, LONGEST + 1)):
        found |= joined(found, words)
    return found


# each draw is an order and the set of all its short sequences, found without derivatives
letters = st.sampled_from(sorted(LETTERS)).map(lambda name: (LETTERS[name], {name}))


def extend(parts):
    pairs = st.lists(parts, min_size=1, max_size=3)
    return st.one_of(
        pairs.map(lambda p: (then(*(o for o, _ in p)), _joined_all(w for _, w in p))),
        pairs.map(lambda p: (either(*(o for o, _ in p)), set().union(*(w for _, w in p)))),
        parts.map(lambda p: (maybe(p[0]), {""} | p[1])),
        st.tuples(parts, st.integers(0, 4)).map(
            lambda p: (repeat(p[0][0], most=p[1]), repeated(p[0][1], p[1]))
        ),
        parts.map(lambda p: (repeat(p[0]), repeated(p[1], LONGEST + 1))),
    )


def _joined_all(each):
    found = {""}
    for words in each:
        found = joined(found, words)
    return found


orders = st.recursive(letters, extend, max_leaves=6)


def admits(order, word):
    for name in word:
        order = order.after(name)
    return order.can_end


@given(orders)
def test_derivatives_admit_exactly_the_sequences_of_an_order(drawn):
    order, words = then(drawn[0]), drawn[1]
    for length in range(LONGEST + 1):
        for letters_of_word in product(LETTERS, repeat=length):
            word = "".join(letters_of_word)
            assert admits(order, word) == (word in words), word


@given(orders, st.text("abc", max_size=LONGEST))
def test_what_may_come_next_is_what_does_not_end_in_never(drawn, word):
    order = then(drawn[0])
    for name in word:
        may_come = set(order.next())
        assert (order.after(name) != NEVER) == (name in may_come)
        order = order.after(name)


@given(orders)
def test_all_questions_of_an_order_are_listed(drawn):
    order, words = then(drawn[0]), drawn[1]
    assert {asked.name for asked in order.questions()} >= set("".join(words))


def test_a_long_repetition_stays_as_short_as_it_began():
    order = then(a, repeat(either(b, then(c, repeat(b, most=20)))))
    for name in "a" + "bcbb" * 2000:
        order = order.after(name)
    assert len(repr(order)) < 20_000


def test_a_look_has_twice_as_many_directions_as_the_one_before():
    looking = Script(then(repeat(a)), looks=("a",), most={"b": 3})
    for d in (1, 2, 3, 10, 100, 1000):
        directions, n_looks = 1, 1
        while directions < d:
            directions, n_looks = 2 * directions, n_looks + 1
        assert looking.most_times("a", d) == max(2, n_looks)
        assert looking.most_times("b", d) == 3
        assert looking.most_times("c", d) > 10**9


def test_bounds_in_a_script_are_words_that_sites_know():
    with pytest.raises(ValueError, match="field 'Z': 'square' must be"):
        Script(END, bounds={"Z": "square"})


@pytest.mark.parametrize("failure", [ValueError("1.5 in a row"), InputError("k=9 exceeds 7")])
def test_a_script_that_fails_refuses_the_plan(failure, monkeypatch):
    monkeypatch.setitem(_SCRIPTS, "Failing", None)

    @script("Failing")
    def failing(plan):
        raise failure

    with pytest.raises(PolicyRefused, match="Failing") as refusal:
        find_script(RunPlan("run", "Failing"))
    assert ("k=9" in str(refusal.value)) == isinstance(failure, InputError)
    assert "1.5" not in str(refusal.value)


def test_a_program_without_a_script_is_refused_by_name():
    with pytest.raises(PolicyRefused, match=r"'OtherPCA' declares no script.*FederatedPCA"):
        find_script(RunPlan("run", "OtherPCA"))
