"""A solver's script that is too narrow or too wide is named."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedpca.protocol.script import either, maybe, repeat, then
from fedpca.solvers import Lanczos
from fedpca.solvers.common_features import column_names
from fedpca.solvers.contract import covariance_product
from fedpca.solvers.standardize import count_and_sum, standardize
from fedpca.testing import check_solver
from fedpca.testing.solvers import _check_script_admits, _check_script_refuses, _installed

RNG = np.random.default_rng(0)
SITES = {f"site-{i}": RNG.standard_normal((30, 6)) * np.arange(6, 0, -1) for i in (1, 2, 3)}


@dataclass(frozen=True)
class Narrow(Lanczos):
    name = "narrow"

    def script(self, plan):
        return replace(super().script(plan), bounds={"Z": "columns 1..2"})


@dataclass(frozen=True)
class Endless(Lanczos):
    name = "endless"

    def script(self, plan):
        return replace(super().script(plan), most={})


@dataclass(frozen=True)
class Twice(Lanczos):
    name = "twice"

    def script(self, plan):
        order = then(count_and_sum, repeat(standardize), repeat(covariance_product))
        return replace(super().script(plan), order=order)


@dataclass(frozen=True)
class AnyTurn(Lanczos):
    name = "any-turn"

    def script(self, plan):
        asked = (column_names, count_and_sum, standardize, covariance_product)
        return replace(super().script(plan), order=maybe(repeat(either(*asked))))


@pytest.mark.parametrize(
    ("solver", "check", "text"),
    [
        (Narrow(), _check_script_admits, "refuses an honest run: .*from 1 to 2 columns"),
        (Endless(), _check_script_refuses, "admits 'covariance_product' without end"),
        (Twice(), _check_script_refuses, "admits 'standardize' twice"),
        (AnyTurn(), _check_script_refuses, "admits 'column_names' twice"),
    ],
)
def test_a_script_that_does_not_fit_its_solver_is_named(solver, check, text):
    with _installed(solver), pytest.raises(AssertionError, match=text):
        check(solver, SITES)


def test_a_solver_without_a_script_is_no_solver():
    class Plain:
        name, guarantee, seen = "plain", "exact", ()

        def solve(self, fed, problem):
            raise AssertionError

    with pytest.raises(AssertionError, match="does not implement all of"):
        check_solver(Plain())
