"""Count the directions in which an answer shows a site's rows.

If a site has n rows and more than n features, ``A'A`` shows the space that the n rows span. Which of
the bases of this space the rows are can be found by independent component analysis, because the rows
look least like mixtures. Products ``A'A Z`` with k columns show k directions of this space.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from fedpca.arrays import Arrays
from fedpca.protocol.question import Question

DIGEST_BYTES = 8


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


def digest_of(answer: Arrays, secret: bytes) -> int:
    """Return a digest of an answer; an answer that is the same as before shows nothing new."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES, key=secret)
    for name, array in sorted(answer.items()):
        found.update(f"{name} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return int(np.frombuffer(found.digest(), np.int64)[0])
