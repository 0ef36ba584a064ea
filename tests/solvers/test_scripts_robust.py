"""Sites that follow a plan answer what `RobustPCA` asks, and nothing else."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from fedpca import Federation, Policy, RobustPCA, Site
from fedpca.errors import PolicyRefused
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import find_script
from fedpca.solvers import Dcf
from fedpca.testing.scripted import ScriptedEngine
from tests.support import low_rank_rows

STRICT = Policy(allow=("robust",), min_rows=10, min_sites=2)
STRICT_SHOWING = Policy(allow=("robust",), gather=True, min_rows=10, min_sites=2)


def rows_by_site(n=120, d=12, noise=0.1, missing=0.0, apart=0, sizes=None, seed=0):
    X, _, _ = low_rank_rows(n, d, 3, noise=noise, seed=seed)
    rng = np.random.default_rng(seed)
    if sizes is not None:
        X *= sizes
    if apart:
        chosen = np.linspace(0, n - 1, apart).astype(int)
        X[chosen] = 20 * rng.standard_normal(d) + rng.standard_normal((apart, d)) / 10
    X[rng.random(X.shape) < missing] = np.nan
    return dict(zip(("north", "south", "west"), np.array_split(X, 3), strict=True))


def guarded(rows, policy):
    return {name: Site(own, name=name, policy=policy) for name, own in rows.items()}


def fitted(estimator, fed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(fed)


def assert_same(a, b):
    assert a.components_.tobytes() == b.components_.tobytes()
    assert a.explained_variance_.tobytes() == b.explained_variance_.tobytes()
    assert a.mean_.tobytes() == b.mean_.tobytes()
    assert a.threshold_ == b.threshold_
    assert list(a.run_.ledger) == list(b.run_.ledger)


CASES = {
    "auto": {},
    "exact": ({}, {"noise": 0.0}),
    "auto, bound": {"n_components": None, "max_components": 5},
    "exact, bound": ({"n_components": None, "max_components": 5}, {"noise": 0.0}),
    "components of different sizes": ({}, {"sizes": np.geomspace(1, 100, 12)}),
    "threshold": {"method": "threshold"},
    "least squares": {"method": "least-squares"},
    "least squares, bound": {"method": "least-squares", "n_components": None, "max_components": 4},
    "dcf": {"method": "dcf", "max_rounds": 30},
    "dcf with options": {"method": Dcf(local_steps=3, step=1e-4), "max_rounds": 10},
    "dcf, bound": {"method": "dcf", "n_components": None, "max_components": 4, "max_rounds": 20},
    "mean": {"center": "mean"},
    "no center": {"center": "none"},
    "scaled": {"scale": True},
    "mean, scaled": {"center": "mean", "scale": True},
    "no center, scaled": {"center": "none", "scale": True},
    "all rows": {"rows": "all"},
    "few rounds": {"max_rounds": 2},
    "coarse": {"tol": 0.1},
    "missing entries": ({}, {"missing": 0.1}),
    "missing entries, bound": ({"n_components": None, "max_components": 4}, {"missing": 0.1}),
    "rows apart": ({}, {"apart": 24}),
    "rows apart, bound": ({"n_components": None, "max_components": 4}, {"apart": 24}),
}


FEW_APART = {"exact, bound"}  # sites leave out fewer rows than the default min_count


@pytest.mark.parametrize("case", CASES)
def test_honest_runs_pass_under_a_strict_policy_with_the_same_bits(case):
    options, of_rows = CASES[case] if isinstance(CASES[case], tuple) else (CASES[case], {})
    options = {"n_components": 3, "random_state": 0} | options
    least = 1 if case in FEW_APART else STRICT.min_count
    rows = rows_by_site(**of_rows)
    plain = fitted(RobustPCA(**options), Federation.local(guarded(rows, None)))
    shows = replace(STRICT_SHOWING, min_count=least)
    strict = fitted(RobustPCA(**options), Federation.local(guarded(rows, shows)))
    assert_same(plain, strict)
    hides = replace(STRICT, min_count=least)
    hidden = fitted(RobustPCA(**options), Federation.local(guarded(rows, hides)))
    assert hidden.components_.tobytes() == plain.components_.tobytes()
    assert hidden.sparse_share_ == {}


def test_rows_that_lie_apart_are_left_out_under_a_policy():
    strict = fitted(
        RobustPCA(3, random_state=0), Federation.local(guarded(rows_by_site(apart=24), STRICT))
    )
    assert strict.n_left_out_ == 24
    assert strict.run_.ledger.totals()


def test_fewer_rows_apart_than_min_count_are_not_left_out():
    rows, few = rows_by_site(), 4
    direction = 20 * np.random.default_rng(1).standard_normal(12)
    rows["north"][:few] = direction + rows["north"][:few] / 10
    plain = RobustPCA(3, random_state=0)
    with pytest.warns(UserWarning, match="4 rows lie apart"):
        plain.fit(Federation.local(guarded(rows, None)))
    strict = fitted(RobustPCA(3, random_state=0), Federation.local(guarded(rows, STRICT)))
    assert (plain.n_left_out_, strict.n_left_out_) == (few, 0)
    assert strict.run_.ledger.totals()


def test_counts_of_a_flag_pass_with_their_scale():
    rng = np.random.default_rng(0)
    rows = {name: rng.poisson(0.6, (60, 9)).astype(float) for name in ("north", "south")}
    options = {"n_components": 2, "scale": True, "random_state": 0}
    plain = fitted(RobustPCA(**options), Federation.local(guarded(rows, None)))
    strict = fitted(RobustPCA(**options), Federation.local(guarded(rows, STRICT_SHOWING)))
    assert_same(plain, strict)


@pytest.mark.parametrize("lost_in", ["begin_robust", "hard_round", "finish_robust"])
def test_a_run_goes_on_without_a_lost_site_under_a_policy(lost_in):
    def lose(reply):
        return None if (reply.site, reply.question) == ("west", lost_in) else reply.answer

    def fit(policy):
        engine = ScriptedEngine(guarded(rows_by_site(), policy), lose)
        return fitted(RobustPCA(3, random_state=0), Federation(engine, quorum=2))

    plain, strict = fit(None), fit(STRICT_SHOWING)
    assert strict.run_.sites == ("north", "south")
    assert plain.components_.tobytes() == strict.components_.tobytes()


def test_a_killed_run_resumes_under_a_policy(tmp_path):
    rows = rows_by_site()
    whole = fitted(RobustPCA(3, random_state=0), Federation.local(guarded(rows, STRICT)))
    seen = []

    def crash(reply):
        seen.append(reply.question)
        if seen.count("hard_round") > 12:
            raise KeyboardInterrupt
        return reply.answer

    journal = tmp_path / "run.journal"
    engine = ScriptedEngine(guarded(rows, STRICT), crash, journal=journal)
    with pytest.raises(KeyboardInterrupt):
        fitted(RobustPCA(3, random_state=0), Federation(engine, journal=journal))
    engine = ScriptedEngine(guarded(rows, STRICT), journal=journal)
    resumed = fitted(RobustPCA(3, random_state=0), Federation(engine, journal=journal))
    assert resumed.components_.tobytes() == whole.components_.tobytes()


def test_the_default_policy_refuses_the_program_by_name():
    fed = Federation.local(guarded(rows_by_site(), Policy()))
    with pytest.raises(PolicyRefused, match="does not allow 'robust'"):
        RobustPCA(3).fit(fed)


def test_a_plan_without_its_parameters_is_refused():
    with pytest.raises(PolicyRefused, match="not those of RobustPCA"):
        find_script(RunPlan("run", "RobustPCA", {}, {"a": ""}))
