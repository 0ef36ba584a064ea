"""Describe a rule of a site's policy in one row: its values, and what it prevents.

A rule is declared once, as a field of `fedpca.site.policy.Policy`. All that is known about it follows
from its row: which values are refused, the comment in a policy file, the sentence that explains a
policy, the reference, and, for rules about plans or rows, the refusal. So these cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedpca.errors import InputError
from fedpca.protocol.parameters import check_number, check_whole
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Script

if TYPE_CHECKING:
    from fedpca.site.policy import Policy

PRIVATE_RUNS = "private"  # what a policy can require, beside secure sums
UNLIMITED = "unlimited"  # in a policy file, for a limit that is None


class Asked(NamedTuple):
    """A run that asks a site to take part."""

    plan: RunPlan
    script: Script
    own_key: str  # the fingerprint of the site's own key


class Shape(Protocol):
    """The size of the rows that a question reads; to count rows may take a pass over a file."""

    @property
    def n_rows(self) -> int: ...

    @property
    def n_features(self) -> int: ...


class Complete(NamedTuple):
    """The size of the rows that are left if rows with gaps are not used."""

    n_rows: int
    n_features: int


@dataclass(frozen=True)
class Rule:
    """What is known about one rule of a policy.

    Parameters
    ----------
    default : value
        The value of a policy that does not state the rule.
    off : value
        The value with which the rule restricts nothing, or None if every value restricts something.
    prevents : str
        What the rule prevents; the comment above the rule's line in a policy file.
    least, most : float, optional
        The range of a number.
    known : tuple of str, optional
        The words that a list may have, if it may not have any.
    reads : callable, optional
        Takes the rule and a value, and returns the value in its plain form, or raises an error that
        names it; by default, the field's type says what to do.
    follows : str, optional
        The property of the policy that has the rule's value if none is given.
    refuses : callable, optional
        Takes the policy and what is asked, and returns why the rule refuses a plan, or None.
    refuses_rows : callable, optional
        Takes the policy and the size of the rows, and returns why the rule refuses questions about
        rows, or None. It counts the rows only if the rule is on.
    name, of : str
        The name and the type of the rule's field.
    """

    default: Any
    off: Any
    prevents: str
    least: Any = 0
    most: Any = None
    known: tuple[str, ...] = ()
    reads: Callable[[Rule, Any], Any] | None = None
    follows: str = ""
    refuses: Callable[[Policy, Asked], str | None] = lambda _policy, _asked: None
    refuses_rows: Callable[[Policy, Shape], str | None] | None = None
    name: str = ""
    of: str = ""

    @property
    def is_optional(self) -> bool:
        """Return whether the value may be None."""
        return self.of.endswith(" | None")

    @property
    def is_unlimited(self) -> bool:
        """Return whether a policy file may say that there is no limit."""
        return self.off is None and self.is_optional

    def read(self, value: Any) -> Any:
        """Return a value in its plain form, or raise an error that names it."""
        if value is None and self.is_optional:
            return None
        return (self.reads or _READERS[self.of.removesuffix(" | None")])(self, value)

    def value_in(self, policy: Policy) -> Any:
        """Return the value that applies, perhaps one that follows from other rules."""
        return getattr(policy, self.follows or self.name)

    def is_on(self, policy: Policy) -> bool:
        """Return whether the rule restricts anything."""
        return bool(self.value_in(policy) != self.off)


def rule(default: Any, **row: Any) -> Any:
    """Return a field of a policy that is declared with its row."""
    return field(default=default, metadata={"rule": Rule(default, **row)})


def _whole(row: Rule, value: Any) -> Any:
    check_whole(row.name, value, row.least, row.most)
    return value


def _number(row: Rule, value: Any) -> Any:
    assert row.most is not None
    check_number(row.name, value, row.least, row.most)
    return value


def _flag(row: Rule, value: Any) -> Any:
    if not isinstance(value, bool):
        raise InputError(f"{row.name}={value!r} must be true or false, without quotes")
    return value


def _words(row: Rule, value: Any) -> Any:
    is_list = isinstance(value, list | tuple) and all(isinstance(w, str) and w for w in value)
    if not is_list or (row.known and not set(value) <= set(row.known)):
        words = f", either empty or with {' or '.join(map(repr, row.known))}" if row.known else ""
        example = (row.known or row.default)[0]
        raise InputError(
            f"{row.name}={value!r} must be a list of names, as in ['{example}']{words}"
        )
    return tuple(value)


def fingerprints(row: Rule, value: Any) -> Any:
    """Return the fingerprints in a list, or in a table with names, which are only for people."""
    listed = list(value.values()) if isinstance(value, Mapping) else value
    is_list = isinstance(listed, list | tuple) and all(
        isinstance(each, str) and re.fullmatch(r"[0-9a-f]{64}", each) for each in listed
    )
    if not is_list:
        raise InputError(
            f"{row.name}={value!r} must be a list of fingerprints, or a table of names and "
            "fingerprints; a fingerprint has 64 characters from 0-9 and a-f; "
            "`fedpca site-key --show NAME.pub` prints it"
        )
    if len(set(listed)) < len(listed):
        raise InputError(
            f"{row.name} has the same fingerprint twice; list each site's fingerprint once"
        )
    return tuple(listed)


# by the type of a rule's field
_READERS = {"int": _whole, "float": _number, "bool": _flag, "tuple[str, ...]": _words}
