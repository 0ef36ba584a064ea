"""Count the directions in which an answer shows a site's rows.

If a site has n rows and more than n features, ``A'A`` shows the space that the n rows span. Which of
the bases of this space the rows are can be found by independent component analysis, because the rows
look least like mixtures. Products ``A'A Z`` with k columns show k directions of this space.

Two answers together may be about a part of the rows. Their difference is about the rows that have
changed between them, or about the rows with gaps, if one run fills gaps and the other drops rows. Each
part must have enough rows for the directions in which answers to both kinds of runs, or from before and
after the change, show it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedpca.arrays import Array, Arrays
from fedpca.errors import PolicyRefused
from fedpca.protocol.question import Question
from fedpca.rows.gaps import DROP, MEAN, MISSING
from fedpca.rows.hashes import n_changed
from fedpca.site.policy import Policy
from fedpca.site.rows_record import RowsRecord

DIGEST_BYTES = 8
# names of arrays in the record of rows: counts; digests of answers; hashes of the rows before a change
DIRECTIONS, ANSWERS, SHOWN_ROWS = "directions", "answers", "shown rows"


def directions_in(question: Question, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return in how many directions an answer shows the rows, from the shapes of its fields.

    A triangle, or a matrix of d rows and d columns, shows d directions. Any other matrix shows as many
    as it has columns. Vectors and numbers show none. All fields of an answer are about the same ones.
    Questions with noise, and questions that a policy allows with a word of their own, do not count.
    """
    if question.spends is not None or question.needs or not question.reads_rows:
        return 0
    shown = [0]
    for name, (dtype, lengths) in question.answers.items():
        if np.dtype(dtype).kind != "f":
            continue
        if "triangle" in (*lengths, *(question.at_most.get(each) for each in lengths)):
            shown.append(math.isqrt(2 * shapes[name][-1]))  # the d of d (d + 1) / 2
        elif len(lengths) > 1:
            shown.append(math.prod(shapes[name][:-2]) * shapes[name][-1])
    return max(shown)


@dataclass(frozen=True)
class Shown:
    """In how many directions answers have shown a site's rows, at most the number of features."""

    total: int = 0
    by_kind: tuple[int, ...] = (0,) * len(MISSING)  # by what happened to gaps
    n_changed: int = 0  # rows in the last change, and directions shown before and since
    before: int = 0
    since: int = 0

    @classmethod
    def recorded(cls, kept: Arrays) -> Shown:
        """Return what a record of rows holds."""
        if DIRECTIONS not in kept:
            return cls()
        total, *rest = kept[DIRECTIONS].tolist()
        by_kind, change = rest[: len(MISSING)], rest[len(MISSING) :]
        return cls(total, tuple(by_kind), *change) if rest else cls(total)

    def to_record(self) -> Arrays:
        """Return the array that a record of rows holds."""
        change = self.n_changed, self.before, self.since
        return {DIRECTIONS: np.array([self.total, *self.by_kind, *change])}

    def with_answer(self, n_shown: int, missing: int, n_features: int) -> Shown:
        """Return the counts after an answer of a run that treats gaps in this way."""
        by_kind = list(self.by_kind)
        by_kind[missing] = min(by_kind[missing] + n_shown, n_features)
        return replace(
            self,
            total=min(self.total + n_shown, n_features),
            by_kind=tuple(by_kind),
            since=min(self.since + n_shown, n_features),
        )

    def with_change(self, n_rows: int) -> Shown:
        """Return the counts after so many rows have changed."""
        return replace(self, n_changed=n_rows, before=self.total, since=0)


def after_change(kept: Arrays, before: Array | None, now: Array) -> Arrays:
    """Return what a record holds about answers once rows with these hashes take part.

    ``before`` are the hashes of the rows in the last run, or None if they are not known. If no answer
    has shown directions since the last change, no answers tell this change from the last one, so both
    count as one change. So if fits are refused because few rows have changed, waiting helps.
    """
    about = {name: kept[name] for name in (DIRECTIONS, ANSWERS, SHOWN_ROWS) if name in kept}
    if before is None or np.array_equal(before, now):
        return about
    shown = Shown.recorded(kept)
    compared = before if shown.since else kept.get(SHOWN_ROWS, before)
    counts = shown.with_change(n_changed(compared, now)).to_record()
    return {**about, **counts, SHOWN_ROWS: compared}


class Sizes(NamedTuple):
    """How many rows a run uses, and how many are in parts that runs tell apart; 0 if there are none."""

    used: int
    gapped: int = 0  # with gaps, and with values in two columns
    together: int = 0  # with values in two columns


class Part(NamedTuple):
    """Rows that answers show, in how many directions, and how to go on without another policy."""

    about: str
    n_directions: int
    n_rows: int
    way_out: str = (
        "use fewer components, a solver that asks for fewer products, or fewer columns, or add rows at "
        "the site"
    )


class Directions:
    """The count of the directions that answers have shown, and of those that they may still show."""

    def __init__(self, policy: Policy, record: RowsRecord) -> None:
        self._policy, self._record = policy, record
        self._free: set[int] = set()  # kinds of runs whose directions need not be counted

    def begin(self) -> None:
        """Count for rows that have just been opened; what older rows have shown still counts."""
        self._free = set()

    def need_count(self, missing: int) -> bool:
        """Return whether answers count in runs that treat gaps in this way."""
        return self._policy.min_rows_per_direction > 0 and missing not in self._free

    def count(self, n_shown: int, answer: Arrays, missing: int, d: int, sizes: Sizes) -> None:
        """Refuse an answer that shows too many directions of any part of the rows; else count it.

        The count never starts again by itself, because rows that change leave others that do not.
        New rows allow new directions. Nothing is refused if all features may be shown, but it counts,
        because columns may be added later. The refusal does not tell how many rows there are.

        Fewer directions than `Policy.min_count` of a part may always be shown, because a part has more
        rows. ``answer`` is empty if the site could not answer, which must not be seen, so it counts
        like any other.
        """
        kept = self._record.read()
        answers = kept.get(ANSWERS, np.zeros(0, np.int64))
        digest = digest_of(answer, self._record.secret)
        if answer and digest in answers:  # an answer that is asked for again shows nothing new
            return
        before = Shown.recorded(kept)
        shown = before.with_answer(n_shown, missing, d)
        most = self._refuse_more(shown, missing, d, sizes)
        if most >= d:
            if shown.by_kind[missing] == shown.since == d:
                self._free.add(missing)
            if shown == before:
                return
        counted = shown.to_record()
        if answer:
            counted[ANSWERS] = np.append(answers, np.int64(digest))
        self._record.write({**kept, **counted})

    def _refuse_more(self, shown: Shown, missing: int, d: int, sizes: Sizes) -> int:
        """Refuse directions of a part beyond those that may be shown; return the fewest of any part."""
        least, one_each = self._policy.min_rows_per_direction, self._policy.min_count - 1
        limits = [(Part("the site's rows", shown.total, sizes.used), sizes.used // least)]
        if one_each:
            parts = _parts(shown, missing, sizes, enough=least * d)
            limits += [(part, max(part.n_rows // least, one_each)) for part in parts if part.n_rows]
        for part, most in limits:
            if part.n_directions > most:
                path = self._record.path
                deleted = "" if path is None else f", or delete {path.name} in its folder"
                raise PolicyRefused(
                    f"all answers about {part.about} together may show them in one direction for every "
                    f"{least} rows, because the site's policy has min_rows_per_direction={least}, but "
                    f"the answer would show more; {part.way_out}; the site can set another "
                    f"min_rows_per_direction{deleted} if its rows are no secret"
                )
        return min(most for _, most in limits)


def _parts(shown: Shown, missing: int, sizes: Sizes, *, enough: int) -> list[Part]:
    """Return the parts of the rows that runs of this kind help to tell apart.

    If gaps are filled, the product of two columns is about the rows with values in both. What a run
    that fills gaps shows, but not one that drops rows, is about those of them that have gaps.
    """
    changed = Part(
        "the rows that have changed since an earlier fit",
        min(shown.before, shown.since),
        shown.n_changed,
        f"wait until {enough} more rows have changed, or use fewer columns, or fewer components with a "
        "solver that asks for fewer products",
    )
    filled, dropped = shown.by_kind[MEAN], shown.by_kind[DROP]
    return [
        changed,
        Part("the rows with gaps", min(filled, dropped), sizes.gapped),
        Part("the rows with values in two columns", filled, sizes.together),
    ]


def digest_of(answer: Arrays, secret: bytes) -> int:
    """Return a digest of an answer; an answer that is the same as before shows nothing new."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES, key=secret)
    for name, array in sorted(answer.items()):
        found.update(f"{name} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return int(np.frombuffer(found.digest(), np.int64)[0])
