"""Describe a rule of a site's policy in one row: its values, and what it prevents.

A rule is declared once, as a field of `fedpca.site.policy.Policy`. All that is known about it follows
from its row: which values are refused, the comment in a policy file, the sentence that explains a
policy, the reference, and, for rules about plans, the refusal. So these cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedpca.errors import InputError
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import Script

if TYPE_CHECKING:
    from fedpca.site.policy import Policy

UNLIMITED = "unlimited"  # in a policy file, for a limit that is None


class Asked(NamedTuple):
    """A run that asks a site to take part."""

    plan: RunPlan
    script: Script
    own_key: str  # the fingerprint of the site's own key


class Values(Protocol):
    """The values that a rule may have."""

    def read(self, name: str, value: Any) -> Any:
        """Return a value in its plain form, or raise an error that names it."""
        ...


@dataclass(frozen=True)
class Whole:
    """Whole numbers in a range."""

    least: int
    most: int | None = None
    is_optional: bool = False

    def read(self, name: str, value: Any) -> Any:
        if value is None and self.is_optional:
            return None
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_whole or value < self.least:
            raise InputError(f"{name}={value!r} must be a whole number, at least {self.least}")
        if self.most is not None and value > self.most:
            raise InputError(f"{name}={value} must be at most {self.most}")
        return value


@dataclass(frozen=True)
class Number:
    """Numbers in a range."""

    least: float
    most: float
    is_optional: bool = False

    def read(self, name: str, value: Any) -> Any:
        if value is None and self.is_optional:
            return None
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not self.least <= float(value) <= self.most:
            raise InputError(
                f"{name}={value!r} must be a number from {self.least:g} to {self.most:g}"
            )
        return value


class Flag:
    """True or false."""

    def read(self, name: str, value: Any) -> Any:
        if not isinstance(value, bool):
            raise InputError(f"{name}={value!r} must be true or false, without quotes")
        return value


@dataclass(frozen=True)
class Words:
    """Lists of words, of the known ones if these are given."""

    example: str
    known: tuple[str, ...] = ()

    def read(self, name: str, value: Any) -> Any:
        is_list = isinstance(value, list | tuple) and all(isinstance(w, str) and w for w in value)
        if not is_list or (self.known and not set(value) <= set(self.known)):
            words = f", either empty or with {' or '.join(map(repr, self.known))}"
            raise InputError(
                f"{name}={value!r} must be a list of names, as in ['{self.example}']"
                f"{words if self.known else ''}"
            )
        return tuple(value)


class Fingerprints:
    """Lists of fingerprints of keys, or tables with names, which are only for people."""

    def read(self, name: str, value: Any) -> Any:
        listed = list(value.values()) if isinstance(value, Mapping) else value
        is_list = isinstance(listed, list | tuple) and all(
            isinstance(each, str) and re.fullmatch(r"[0-9a-f]{64}", each) for each in listed
        )
        if not is_list:
            raise InputError(
                f"{name}={value!r} must be a list of fingerprints, or a table of names and "
                "fingerprints; a fingerprint has 64 characters from 0-9 and a-f; "
                "`fedpca site-key --show NAME.pub` prints it"
            )
        if len(set(listed)) < len(listed):
            raise InputError(
                f"{name} has the same fingerprint twice; list each site's fingerprint once"
            )
        return tuple(listed)


@dataclass(frozen=True)
class Rule:
    """What is known about one rule of a policy.

    Parameters
    ----------
    values : Values
        The values that the rule may have.
    off : value
        The value with which the rule restricts nothing, or None if every value restricts something.
    prevents : str
        What the rule prevents; the comment above the rule's line in a policy file.
    follows : str, optional
        The property of the policy that has the rule's value if none is given.
    refuses : callable, optional
        Takes the policy and what is asked, and returns why the rule refuses a plan, or None.
    """

    values: Values
    off: Any
    prevents: str
    follows: str = ""
    refuses: Callable[[Policy, Asked], str | None] = lambda _policy, _asked: None

    @property
    def is_unlimited(self) -> bool:
        """Return whether a policy file may say that there is no limit."""
        return self.off is None and getattr(self.values, "is_optional", False)

    def value_in(self, policy: Policy, name: str) -> Any:
        """Return the value that applies, perhaps one that follows from other rules."""
        return getattr(policy, self.follows or name)

    def is_on(self, policy: Policy, name: str) -> bool:
        """Return whether the rule restricts anything."""
        return bool(self.value_in(policy, name) != self.off)


def rule(default: Any, values: Values, **row: Any) -> Any:
    """Return a field of a policy that is declared with its row."""
    return field(default=default, metadata={"rule": Rule(values, **row)})
