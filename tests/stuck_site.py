"""A `fedpca join` whose first question of one name never ends, as a huge number of steps would not.

The first argument is the question's name; the others are those of `fedpca`.
"""

from __future__ import annotations

import functools
import sys

import numpy as np

from fedpca.cli.app import app
from fedpca.protocol.question import find_question


def never_end_once(name):
    """Replace a question's work by a loop over blocks; the next time, the question works as usual."""
    question = find_question(name)
    usual = question.function

    @functools.wraps(usual)  # a policy knows a question by its module
    def endless(site, **arrays):
        object.__setattr__(question, "function", usual)
        while True:
            np.ones((100, 100)) @ np.ones((100, 100))

    object.__setattr__(question, "function", endless)


if __name__ == "__main__":
    never_end_once(sys.argv.pop(1))
    app()
