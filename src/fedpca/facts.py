"""State each fact of a result once; the terminal, other programs, and pages show what is stated here.

A result has a method ``facts``. It returns sections: a `Section` holds facts, each with a key for
programs, a label for people, a value, and the value's kind. A `Records` holds many facts of the same
kinds, one line for each. The kind says how a value reads. Those who show facts know kinds and sections,
but no results:

- `as_plain` returns the values under their keys, for JSON.
- `fedpca.cli.terminal` prints sections, and `fedpca.report.markup` writes them into a page.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedpca.arrays import Array

N_LEADING = 5  # features that are named for each component


class ValueKind(NamedTuple):
    """How a value reads: the text of a known value, and where the text stands in a table."""

    text: Callable[[Any], str] = str
    is_number: bool = True  # to align at the right
    is_long: bool = False  # too long for a table with other columns
    unknown: str = ""  # the text if the value is None
    is_shown: bool = True  # to people; if false, only programs get the value
    is_alarm: bool = False  # a true value deserves attention


def size(n_bytes: float) -> str:
    """Return a number of bytes as text, in bytes, kB, MB, GB, or TB."""
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= length:
            return f"{n_bytes / length:.1f} {unit}"
    return f"{n_bytes:.0f} bytes"


def in_minutes(time: str) -> str:
    """Return a time in ISO format as text in the local time zone, without seconds."""
    return f"{datetime.datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M %Z}" if time else ""


def _leading(weights: Weights) -> str:
    return ", ".join(f"{name} {w:+.2f}" for name, w in weights.leading(N_LEADING).items())


def choice(yes: str, no: str, *, is_alarm: bool = False) -> ValueKind:
    """Return the kind of a value that is true or false."""
    return ValueKind(lambda value: yes if value else no, is_number=False, is_alarm=is_alarm)


def or_else(absent: str) -> ValueKind:
    """Return the kind of a text that may be empty."""
    return ValueKind(lambda text: text or absent, is_number=False)


TEXT = ValueKind(is_number=False)
LONG_TEXT = ValueKind(is_number=False, is_long=True)
TEXTS = ValueKind("; ".join, is_number=False)
DATA = ValueKind(is_shown=False)
YES = choice("yes", "no")
COUNT = ValueKind("{:,}".format)
LOCAL = ValueKind("{:,}".format, unknown="at the site")
ROWS = ValueKind("{:,.10g}".format)  # a number of rows; a page hides small ones
BYTES = ValueKind("{:,}".format)
SIZE = ValueKind(size)  # a number of bytes that is only estimated
SHARE = ValueKind("{:.2%}".format)
VARIANCE = ValueKind("{:.6g}".format)
NUMBER = ValueKind("{:.3g}".format)
CHANGE = ValueKind("{:.1e}".format)
EPSILON = ValueKind(lambda epsilon: "infinite" if epsilon == math.inf else f"{epsilon:.4g}")
ANGLE = ValueKind("{:.2f}°".format)
SECONDS = ValueKind("{:,.2f}".format)
TIME = ValueKind(in_minutes, is_number=False)
SHAPE = ValueKind(lambda shape: " x ".join(map(str, shape)), is_number=False)
LOADINGS = ValueKind(_leading, is_number=False, is_long=True)
BOUND = ValueKind(  # on the sine of an angle
    lambda bound: f"at most {bound:.1e}" if bound < 1 else "unknown: the eigengap is too small"
)

SINE = "sine of the largest angle to the components of the pooled rows"


class Fact(NamedTuple):
    """One fact of a result; the label is the key in words unless there is another."""

    key: str
    value: Any
    kind: ValueKind = TEXT
    label: str = ""
    note: str = ""  # what the value means, in a sentence

    @property
    def words(self) -> str:
        """Return the label, or the key in words."""
        return self.label or self.key.replace("_", " ")


class Column(NamedTuple):
    """What the values in one column of records are."""

    key: str
    kind: ValueKind = TEXT
    label: str | None = None

    @property
    def words(self) -> str:
        """Return the label, or the key in words."""
        return self.key.replace("_", " ") if self.label is None else self.label


@dataclass(frozen=True)
class Section:
    """Facts that belong together; programs find them at ``key``, whose parts are separated by dots."""

    key: str
    facts: tuple[Fact, ...]
    title: str = ""

    def shown(self) -> list[tuple[Fact, str]]:
        """Return the facts that hold any text for people, and their texts."""
        told = [
            (fact, in_words(fact.value, fact.kind)) for fact in self.facts if fact.kind.is_shown
        ]
        return [(fact, text) for fact, text in told if text]

    def __getitem__(self, key: str) -> Fact:
        return next(fact for fact in self.facts if fact.key == key)


@dataclass(frozen=True)
class Records:
    """Lines of facts of the same kinds, such as one for each component.

    If ``by_first`` is true, programs find each line by the value in its first column. People see a line
    as text rather than as a row of a table if ``as_lines`` is true, and at most ``n_shown`` lines. The
    first ``n_names`` columns tell which line it is.
    """

    key: str | None  # None if programs find the same facts elsewhere
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Any, ...]]
    title: str = ""
    note: str = ""
    by_first: bool = False
    as_lines: bool = False
    n_shown: int | None = None
    n_names: int = 1

    def only(self, *keys: str) -> Records:
        """Return the records with these columns, in this order."""
        places = [next(j for j, c in enumerate(self.columns) if c.key == key) for key in keys]
        rows = [tuple(row[j] for j in places) for row in self.rows]
        return replace(self, columns=tuple(self.columns[j] for j in places), rows=rows)

    def shown(self) -> tuple[list[Column], list[list[Any]]]:
        """Return the columns that hold any text for people, and their values."""
        used = [
            j
            for j, column in enumerate(self.columns)
            if column.kind.is_shown and any(in_words(row[j], column.kind) for row in self.rows)
        ]
        return [self.columns[j] for j in used], [[row[j] for j in used] for row in self.rows]


Sections = tuple[Section | Records, ...]
S = TypeVar("S", Section, Records)


def find(sections: Sections, key: str, kind: type[S]) -> S | None:
    """Return the section with a key, or None if the result has none."""
    return next((s for s in sections if s.key == key and isinstance(s, kind)), None)


def in_words(value: Any, kind: ValueKind) -> str:
    """Return a value as people read it."""
    if value is None:
        return kind.unknown
    if isinstance(value, Mapping) and not kind.is_long:
        return ", ".join(f"{name} {kind.text(each)}" for name, each in value.items())
    return kind.text(value)


def as_plain(sections: Sections) -> dict[str, Any]:
    """Return the values of all facts under their keys, as values that JSON can hold.

    Numbers that JSON cannot express, such as infinity, become None.
    """
    found: dict[str, Any] = {}
    for section in sections:
        if section.key is None:
            continue
        *above, last = section.key.split(".")
        at = found
        for name in above:
            at = at.setdefault(name, {})
        if isinstance(section, Records):
            at[last] = _plain_records(section)
        else:
            at = at.setdefault(last, {}) if last else at
            at.update({fact.key: _plain(fact.value) for fact in section.facts})
    return found


def _plain_records(records: Records) -> Any:
    keys = [column.key for column in records.columns]
    rows = [[_plain(value) for value in row] for row in records.rows]
    if not records.by_first:
        return [dict(zip(keys, row, strict=True)) for row in rows]
    if len(keys) == 2:
        return dict(rows)
    return {name: dict(zip(keys[1:], rest, strict=True)) for name, *rest in rows}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Weights(Mapping[str, float]):
    """A number for each feature by name; the names and numbers are kept as they are."""

    def __init__(self, names: Sequence[str], values: Array) -> None:
        self.names, self.array = names, values

    def __getitem__(self, name: str) -> float:
        return float(self.array[list(self.names).index(name)])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def items(self) -> Any:
        """Return the names and numbers as pairs, which is faster than looking up each name."""
        return list(zip(self.names, self.array.tolist(), strict=True))

    def leading(self, n: int) -> dict[str, float]:
        """Return the n largest numbers by size, and their names."""
        order = np.argsort(-np.abs(self.array), kind="stable")[:n]
        return {self.names[j]: float(self.array[j]) for j in order}


class Component(NamedTuple):
    """One component: its share, that of all components up to it, and its loading on each feature."""

    site: str | None  # for a local component
    component: str  # its number, counted from 1; in a personalized model, the name of its score
    variance: float
    share: float  # of the total variance, or of the site's variance
    cumulative: float
    loadings: Weights

    @property
    def title(self) -> str:
        """Return the name of the component, and of its site if it is local."""
        return self.component if self.site is None else f"{self.component} of {self.site}"


def components_of(
    variances: Array,
    total: float | Array,
    loadings: Array,
    names: Sequence[str],
    *,
    labels: Sequence[str] | None = None,
    site: str | None = None,
) -> list[Component]:
    """Return components, which are the rows of ``loadings``, with their shares of a total variance."""
    shares = variances / (float(total) or 1.0)
    labels = [str(i) for i in range(1, len(variances) + 1)] if labels is None else labels
    values = zip(labels, variances, shares, np.cumsum(shares), loadings, strict=True)
    return [
        Component(site, label, float(v), float(share), float(up_to), Weights(names, row))
        for label, v, share, up_to, row in values
    ]


def names_of_features(names: Sequence[Any] | None, d: int) -> tuple[str, ...]:
    """Return the names of d features, which are named by position if ``names`` is None."""
    if names is None:
        return tuple(f"column {j}" for j in range(d))
    return tuple(str(name) for name in names)


def about(
    kind: str, n_rows: float, components: Sequence[Component], n_features: int, *more: Fact
) -> Section:
    """Return what every model and summary says first: what it is about, and how much it explains."""
    names = components[0].loadings.names if components else names_of_features(None, n_features)
    common = [component for component in components if component.site is None]
    facts = (
        Fact("kind", kind),
        Fact("n_rows", n_rows, ROWS, "rows"),
        Fact("n_features", n_features, COUNT, "features"),
        Fact("n_components", len(common), COUNT, "components"),
        Fact("explained", sum(each.share for each in common), SHARE, "variance explained"),
        Fact("features", names, DATA),
    )
    return Section("", (*facts, *more))


def cautions(texts: Sequence[str]) -> Records:
    """Return what a person should know before using a result, a line for each text."""
    return Records("warnings", (Column("text"),), [(text,) for text in texts], as_lines=True)


def records_of_components(components: Sequence[Component]) -> Records:
    """Return a line for each component."""
    columns = (
        Column("site"),
        Column("component"),
        Column("variance", VARIANCE),
        Column("share", SHARE),
        Column("cumulative", SHARE),
        Column("loadings", LOADINGS, "features with the largest loadings"),
    )
    return Records("components", columns, components, "Components", n_shown=20, n_names=2)
