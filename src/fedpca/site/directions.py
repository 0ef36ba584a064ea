"""Count the directions in which an answer shows a site's rows.

If a site has n rows and more than n features, ``A'A`` shows the space that the n rows span. Which of
the bases of this space the rows are can be found by independent component analysis, because the rows
look least like mixtures. Products ``A'A Z`` with k columns show k directions of this space.

Two answers together may be about a part of the rows. Their difference is about the rows that have
changed between them, or about the rows with gaps, if one run fills gaps and the other drops rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedpca.arrays import Arrays
from fedpca.protocol.question import Question
from fedpca.rows.gaps import MISSING

DIGEST_BYTES = 8
DIRECTIONS = "directions"  # the name of the counts in the record of rows


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

    def with_change(self, n_changed: int) -> Shown:
        """Return the counts after rows have changed."""
        if not n_changed:
            return self
        if self.n_changed and not self.since:  # no answer tells this change from the last one
            return replace(self, n_changed=min(self.n_changed, n_changed))
        return replace(self, n_changed=n_changed, before=self.total, since=0)


def digest_of(answer: Arrays, secret: bytes) -> int:
    """Return a digest of an answer; an answer that is the same as before shows nothing new."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES, key=secret)
    for name, array in sorted(answer.items()):
        found.update(f"{name} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return int(np.frombuffer(found.digest(), np.int64)[0])
