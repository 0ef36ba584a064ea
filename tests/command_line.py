"""The command line as tests call it, and the rows of two sites."""

from __future__ import annotations

import re

import numpy as np
from typer.testing import CliRunner

from fedpca.cli.app import app
from support import gapped_rows

NAMES = ["a", "b", "c", "d", "e"]
ROWS = gapped_rows(np.random.default_rng(0), 80, 5, 2, offset=3.0)


def told(done):
    """The facts that a command printed as lines, by label."""
    pairs = (re.split(r" {2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0]}


def run(*arguments):
    """Run a command in this process; an exception that is no exit is raised."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
