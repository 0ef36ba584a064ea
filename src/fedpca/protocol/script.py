"""Describe the order in which a program asks its questions, so that a site can follow along.

::

    order = then(column_names, count_and_sum, maybe(squares), standardize,
                 repeat(covariance_product), maybe(explained_energy))

A site that has admitted a run's plan finds the script of the plan's program. It answers a question only
if that question may come next. `Order.after` returns a new order: what may follow once a question has
been asked. In terms of regular expressions, the new order is the derivative of the old one.

A program declares its script next to its code, with `script`. Sites find it by the program's name.

Source: Brzozowski, "Derivatives of regular expressions" (1964).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedpca.errors import FedpcaError, PolicyRefused
from fedpca.protocol.parameters import check_asked_words, split_words
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import Question

ANY_NUMBER = 1 << 40  # any number of repetitions, unless `Script.most` bounds it
FEDERATED = "federated"  # the family of programs that need only sums and return the pooled result


@dataclass(frozen=True)
class Order:
    """A set of sequences of questions; this base class holds only the empty sequence."""

    @property
    def can_end(self) -> bool:
        """Return whether no further question is needed."""
        return True

    def after(self, name: str) -> Order:
        """Return what may follow the question with this name, or `NEVER` if it is out of turn."""
        return NEVER

    def next(self) -> Iterator[str]:
        """Yield the names of the questions that may come now, some perhaps twice."""
        return iter(())

    def questions(self) -> Iterator[Question]:
        """Yield all questions, some perhaps twice."""
        return iter(())


@dataclass(frozen=True)
class _One(Order):
    question: Question

    @property
    def can_end(self) -> bool:
        return False

    def after(self, name: str) -> Order:
        return END if name == self.question.name else NEVER

    def next(self) -> Iterator[str]:
        yield self.question.name

    def questions(self) -> Iterator[Question]:
        yield self.question


@dataclass(frozen=True)
class _Either(Order):
    options: tuple[Order, ...]

    @property
    def can_end(self) -> bool:
        return any(option.can_end for option in self.options)

    def after(self, name: str) -> Order:
        return _either([option.after(name) for option in self.options])

    def next(self) -> Iterator[str]:
        for option in self.options:
            yield from option.next()

    def questions(self) -> Iterator[Question]:
        for option in self.options:
            yield from option.questions()


@dataclass(frozen=True)
class _Then(Order):
    first: Order
    rest: Order

    @property
    def can_end(self) -> bool:
        return self.first.can_end and self.rest.can_end

    def after(self, name: str) -> Order:
        going_on = _then(self.first.after(name), self.rest)
        if not self.first.can_end:
            return going_on
        return _either([going_on, self.rest.after(name)])

    def next(self) -> Iterator[str]:
        yield from self.first.next()
        if self.first.can_end:
            yield from self.rest.next()

    def questions(self) -> Iterator[Question]:
        yield from self.first.questions()
        yield from self.rest.questions()


@dataclass(frozen=True)
class _Repeat(Order):
    part: Order
    most: int

    def after(self, name: str) -> Order:
        # without a bound, the rest stays the same, so that equal alternatives are recognized
        rest = self if self.most == ANY_NUMBER else repeat(self.part, most=self.most - 1)
        return _then(self.part.after(name), rest)

    def next(self) -> Iterator[str]:
        return self.part.next()

    def questions(self) -> Iterator[Question]:
        return self.part.questions()


END = Order()
NEVER = _Either(())


def then(*parts: Question | Order) -> Order:
    """Return the order in which the parts follow each other."""
    order = END
    for part in reversed(parts):
        order = _then(_order(part), order)
    return order


def either(*parts: Question | Order) -> Order:
    """Return the order in which any one of the parts is asked."""
    return _either([_order(part) for part in parts])


def maybe(*parts: Question | Order) -> Order:
    """Return the order in which the parts follow each other, or none of them is asked."""
    return _either([END, then(*parts)])


def repeat(*parts: Question | Order, most: int = ANY_NUMBER) -> Order:
    """Return the order in which all parts are asked, one after the other, zero to ``most`` times."""
    part = then(*parts)
    return END if most < 1 or part == END else _Repeat(part, most)


def repeat_from_once(part: Question | Order, most: int = ANY_NUMBER) -> Order:
    """Return the order in which a part is asked at least once, and at most ``most`` times."""
    return then(part, repeat(part, most=most - 1))


def _order(part: Question | Order) -> Order:
    return _One(part) if isinstance(part, Question) else part


def _then(first: Order, rest: Order) -> Order:
    if NEVER in (first, rest):
        return NEVER
    if first == END:
        return rest
    return first if rest == END else _Then(first, rest)


def _either(options: list[Order]) -> Order:
    flat: list[Order] = []
    for option in options:
        flat += option.options if isinstance(option, _Either) else [option]
    distinct = tuple(dict.fromkeys(flat))
    return distinct[0] if len(distinct) == 1 else _Either(distinct)


@dataclass(frozen=True)
class Script:
    """What a program may ask in a run.

    Parameters
    ----------
    order : Order
        The order of the questions.
    most : dict
        The largest number of times that a question may be asked in a run, by the question's name. It
        applies where ``order`` sets no limit.
    looks : sequence of str
        The questions that are asked once for each look at the spectrum. A rank rule looks at twice as
        many directions each time, up to the number of features.
    values : dict
        The values of fields that follow from the plan, by name or as "question.field". A question with
        a different value is refused. A number stands for all entries of an array; a function takes the
        number of times that the question has been asked before, and returns the value.
    bounds : dict
        Further bounds of fields, by name or as "question.field", in the words of
        `fedpca.protocol.parameters`.
    fixed : sequence of str
        Further fields whose values stay the same in a run, each as "question.field".
    lengths : dict
        The largest length that the plan allows for each name of a length in the fields' declarations.
    family : str
        The word that a policy uses to allow the program.
    sees : sequence of str
        Those questions about rows that the program always needs and whose answers the coordinator sees
        site by site.
    """

    order: Order
    most: Mapping[str, int] = field(default_factory=dict)
    looks: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    bounds: Mapping[str, str] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    lengths: Mapping[str, int] = field(default_factory=dict)
    family: str = FEDERATED
    sees: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, words in self.bounds.items():
            check_asked_words(split_words(words), name)

    @property
    def words(self) -> dict[str, str]:
        """Return the words that a policy must allow, and what each is needed for."""
        questions = self.order.questions()
        return {self.family: self.family} | {q.needs: q.doing for q in questions if q.needs}

    def most_times(self, name: str, n_features: int) -> int:
        """Return how many times, at most, a question may be asked, if the order sets no limit."""
        looks = most_looks(n_features) if name in self.looks else ANY_NUMBER
        return min(looks, self.most.get(name, ANY_NUMBER))


def most_looks(n_features: int) -> int:
    """Return how many times, at most, a rank rule may look at the spectrum in a run."""
    return max(2, 1 + (n_features - 1).bit_length())


_SCRIPTS: dict[str, Callable[[RunPlan], Script]] = {}


def script(
    program: str,
) -> Callable[[Callable[[RunPlan], Script]], Callable[[RunPlan], Script]]:
    """Register a function that returns a program's script for a plan."""

    def register(function: Callable[[RunPlan], Script]) -> Callable[[RunPlan], Script]:
        _SCRIPTS[program] = function
        return function

    return register


def find_script(plan: RunPlan) -> Script:
    """Return the script of the plan's program, or refuse a program that has none."""
    if plan.program not in _SCRIPTS:
        raise PolicyRefused(
            f"the program {plan.program!r} declares no script, so the site cannot tell what it will "
            f"ask; the programs with a script are {', '.join(sorted(_SCRIPTS))}"
        )
    try:
        return _SCRIPTS[plan.program](plan)
    except PolicyRefused:
        raise
    except FedpcaError as error:
        raise PolicyRefused(f"the declared {plan.program} is not possible: {error}") from None
    except Exception as error:  # the plan may contain anything, and other packages have scripts
        raise PolicyRefused(
            f"the site cannot tell what the declared {plan.program} will ask: {type(error).__name__}"
        ) from None
