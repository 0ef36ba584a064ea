"""Sites that follow a plan answer what `RobustPCA` asks, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpca import Federation, Policy, RobustPCA, Site
from fedpca.audit.liar import Liar, Refused, score
from fedpca.audit.lying import ROBUST_PLAN
from fedpca.audit.lying_robust import moved_center, robust_rows, value_in_bins
from fedpca.errors import PolicyRefused
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import find_script
from fedpca.solvers import Dcf
from fedpca.solvers.common_features import names_to_bytes
from fedpca.testing.scripted import ScriptedEngine
from support import assert_same_bits, fitted_quietly, guarded, low_rank_rows

RULES = {"min_rows": 10, "min_sites": 2, "min_rows_per_direction": 0}  # some tables are tiny
STRICT = Policy(allow=("robust",), **RULES)
STRICT_SHOWING = replace(STRICT, gather=True)


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


CASES = {
    "auto": {},
    "exact": ({}, {"noise": 0.0}),
    "auto, bound": {"n_components": None, "max_components": 5},
    "exact, bound": ({"n_components": None, "max_components": 5}, {"noise": 0.0}),
    "components of different sizes": ({}, {"sizes": np.geomspace(1, 100, 12)}),
    "threshold": {"solver": "threshold"},
    "least squares": {"solver": "least-squares", "max_rounds": 30},
    "least squares, bound": {
        "solver": "least-squares",
        "n_components": None,
        "max_components": 4,
        "max_rounds": 30,
    },
    "dcf": {"solver": "dcf", "max_rounds": 30},
    "dcf with options": {"solver": Dcf(local_steps=3, step=1e-4), "max_rounds": 10},
    "dcf, bound": {"solver": "dcf", "n_components": None, "max_components": 4, "max_rounds": 20},
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


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_honest_runs_pass_under_a_strict_policy_with_the_same_bits(case):
    options, of_rows = CASES[case] if isinstance(CASES[case], tuple) else (CASES[case], {})
    options = {"n_components": 3, "random_state": 0} | options
    words = ("robust", "auto") if options["n_components"] is None else ("robust",)
    least = 1 if case in FEW_APART else STRICT.min_count
    rows = rows_by_site(**of_rows)
    plain = fitted_quietly(RobustPCA(**options), Federation.local(guarded(rows, None)))
    shows = replace(STRICT_SHOWING, allow=words, min_count=least)
    strict = fitted_quietly(RobustPCA(**options), Federation.local(guarded(rows, shows)))
    assert_same_bits(plain, strict, "mean_", "threshold_")
    hides = replace(STRICT, allow=words, min_count=least)
    hidden = fitted_quietly(RobustPCA(**options), Federation.local(guarded(rows, hides)))
    assert hidden.components_.tobytes() == plain.components_.tobytes()
    assert hidden.sparse_share_ == {}


def test_rows_that_lie_apart_are_left_out_under_a_policy():
    strict = fitted_quietly(
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
    strict = fitted_quietly(RobustPCA(3, random_state=0), Federation.local(guarded(rows, STRICT)))
    assert (plain.n_left_out_, strict.n_left_out_) == (few, 0)
    assert strict.run_.ledger.totals()


def test_counts_of_a_flag_pass_with_their_scale():
    rng = np.random.default_rng(0)
    rows = {name: rng.poisson(0.6, (60, 9)).astype(float) for name in ("north", "south")}
    options = {"n_components": 2, "scale": True, "random_state": 0}
    plain = fitted_quietly(RobustPCA(**options), Federation.local(guarded(rows, None)))
    strict = fitted_quietly(RobustPCA(**options), Federation.local(guarded(rows, STRICT_SHOWING)))
    assert_same_bits(plain, strict, "mean_", "threshold_")


@pytest.mark.parametrize("lost_in", ["begin_robust", "hard_round", "finish_robust"])
def test_a_run_goes_on_without_a_lost_site_under_a_policy(lost_in):
    def lose(reply):
        return None if (reply.site, reply.question) == ("west", lost_in) else reply.answer

    def fit(policy):
        engine = ScriptedEngine(guarded(rows_by_site(), policy), lose)
        return fitted_quietly(RobustPCA(3, random_state=0), Federation(engine, quorum=2))

    plain, strict = fit(None), fit(STRICT_SHOWING)
    assert strict.run_.sites == ("north", "south")
    assert plain.components_.tobytes() == strict.components_.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "after",
    ["column_names", "squares_present", "clipped_product", "residual_product", "count_scores"],
)
def test_a_killed_run_resumes_under_a_policy(after, tmp_path):
    rows, policy = rows_by_site(), replace(STRICT, allow=("robust", "auto"))
    options = {"max_components": 4, "random_state": 0}
    whole = fitted_quietly(RobustPCA(**options), Federation.local(guarded(rows, policy)))
    seen = []

    def crash(reply):
        """Stop the run at the first question after all rounds of one question."""
        if after in seen and reply.question != after:
            raise KeyboardInterrupt
        seen.append(reply.question)
        return reply.answer

    journal = tmp_path / "run.journal"
    engine = ScriptedEngine(guarded(rows, policy), crash, journal=journal)
    with pytest.raises(KeyboardInterrupt):
        fitted_quietly(RobustPCA(**options), Federation(engine, journal=journal))
    engine = ScriptedEngine(guarded(rows, policy), journal=journal)
    resumed = fitted_quietly(RobustPCA(**options), Federation(engine, journal=journal))
    assert resumed.components_.tobytes() == whole.components_.tobytes()


def test_the_default_policy_refuses_the_program_by_name():
    fed = Federation.local(guarded(rows_by_site(), Policy()))
    with pytest.raises(PolicyRefused, match="does not allow 'robust'"):
        RobustPCA(3).fit(fed)


def test_a_plan_without_its_parameters_is_refused():
    with pytest.raises(PolicyRefused, match="cannot tell what the declared RobustPCA will ask"):
        find_script(RunPlan("run", "RobustPCA", {}, {"a": ""}))


ALLOWED = Policy(allow=("robust",))
NO_NAMES = names_to_bytes(None)


def liar_to(tables, policy, plan=None):
    """A coordinator's line to sites with these rows, after the first questions if there is a plan."""
    sites = [Site(rows, name=f"site-{i}", policy=policy) for i, rows in enumerate(tables)]
    liar = Liar({site.name: site.answer_bytes for site in sites})
    liar.begin(**({} if plan is None else {**ROBUST_PLAN, **plan}))
    if plan is not None:
        liar.ask_one("column_names")
        liar.ask("count_present", features=NO_NAMES)
    return liar


def tables(n_sites, n=80, d=6, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) for _ in range(n_sites)]


@pytest.mark.slow
@pytest.mark.parametrize("n_sites", [1, 3])
def test_chosen_frames_recover_all_records_of_open_sites_only(n_sites):
    rows = tables(n_sites, n=40)
    found = robust_rows(liar_to(rows, None))
    assert score(found, np.vstack(rows)).records == 40 * n_sites
    with pytest.raises(Refused, match="no plan was declared"):
        robust_rows(liar_to(rows, ALLOWED))
    liar = begun(rows)
    frame = {"mean": np.ones(6), "scale": np.ones(6), "varies": np.ones(6, np.uint8)}
    with pytest.raises(Refused, match=r"'mean' .* must not change"):
        liar.ask("begin_robust", **frame, reference=1.0)
    product = {"U": np.eye(6)[:, :5], "threshold": 1.0}
    liar.ask("clipped_product", **product)
    liar.ask("clipped_product", **product)
    with pytest.raises(Refused, match="out of turn"):
        liar.ask("clipped_product", **product)


@pytest.mark.slow
def test_a_frame_of_its_own_in_every_run_singles_out_no_row():
    rows = tables(1, n=40)
    for least, n_found in ((1, 40), (5, 0)):
        liar = liar_to(rows, Policy(allow=("robust",), min_count=least))
        liar.begin(**ROBUST_PLAN)
        assert score(robust_rows(liar), rows[0]).records == n_found


def begun(rows, **plan):
    """A line to sites that allow robust PCA, after they were told their center and scale."""
    liar = liar_to(rows, ALLOWED, {"n_components": 5, "center": "mean", "scale": False, **plan})
    liar.ask("squares_present", about=np.zeros(6))
    frame = {"mean": np.zeros(6), "scale": np.ones(6), "varies": np.ones(6, np.uint8)}
    liar.ask("begin_robust", **frame, reference=1.0)
    return liar


def round_with(liar, threshold, is_first=0, r=5, reach=0.0):
    return liar.ask(
        "hard_round", U=np.eye(6)[:, :r], turn=np.eye(r), center=np.zeros(6),
        mean_scores=np.zeros(r), threshold=threshold, reach=np.full(6, reach),
        is_first=np.int64(is_first),
    )  # fmt: skip


def test_thresholds_stay_or_fall_by_a_step_of_the_method():
    liar = begun(tables(1))
    round_with(liar, 8.0, is_first=1)
    round_with(liar, 8.0)
    round_with(liar, 6.4)  # by the decay
    round_with(liar, 6.0, reach=6.0)
    round_with(liar, 6.0, reach=8.0)
    for wrong in (6.1, 5.99, 3.0, 8.0):
        with pytest.raises(Refused, match="in the same fit"):
            round_with(liar, wrong)
    with pytest.raises(Refused, match="is_first must be 0 after the first round"):
        round_with(liar, 6.0, is_first=1)
    with pytest.raises(Refused, match="reach must be"):
        round_with(liar, 6.0, reach=1.0)
    with pytest.raises(Refused, match="at most 6"):
        begun(tables(1)).ask(
            "hard_round", U=np.eye(6), turn=np.ones((7, 6)), center=np.zeros(6),
            mean_scores=np.zeros(7), threshold=1.0, reach=np.zeros(6), is_first=np.int64(1),
        )  # fmt: skip


def test_no_sum_stands_on_fewer_rows_than_min_count():
    rows = np.random.default_rng(0).standard_normal((30, 6))
    rows[:4, 0] /= 1e6  # only these are within the threshold in the first column
    rows[4:, 0] += 100
    answer = {}
    for policy in (Policy(allow=("any",), min_count=1), Policy(allow=("any",))):
        liar = liar_to([rows[:19]], policy)
        liar.ask("count_present", features=NO_NAMES)
        frame = {"mean": np.zeros(6), "scale": np.ones(6), "varies": np.ones(6, np.uint8)}
        liar.ask("begin_robust", **frame, reference=1.0)
        U = np.eye(6)[:, 1:]
        answer[policy.min_count] = liar.ask(
            "hard_round", U=U, turn=np.eye(5), center=np.zeros(6), mean_scores=np.zeros(5),
            threshold=10.0, reach=np.zeros(6), is_first=np.int64(1),
        )  # fmt: skip
    assert answer[1]["good"][0] == 4
    assert answer[1]["total"][0] == pytest.approx(rows[:4, 0].sum())
    assert answer[5]["good"][0] == answer[5]["total"][0] == 0
    assert not answer[5]["AV"][0].any()
    assert (answer[1]["AV"][1:] == answer[5]["AV"][1:]).all()


def test_few_values_of_a_column_are_refused_and_the_column_is_named():
    rows = np.random.default_rng(0).standard_normal((30, 3))
    rows[3:, 1] = np.nan
    with pytest.raises(Refused, match=r"fewer than 5 rows differ .* in columns 1,"):
        liar_to([rows], ALLOWED, {"n_components": 1})
    with pytest.raises(Refused, match="fewer usable rows"):
        liar_to([rows[:4]], ALLOWED, {"n_components": 1})
    rows[4:] = np.nan
    with pytest.raises(Refused, match="in columns 0, 1, 2,"):
        liar_to([rows], ALLOWED, {"n_components": 1})


def test_histograms_close_in_on_a_value_only_if_bins_with_few_values_are_divided(monkeypatch):
    rows = tables(1)
    values = rows[0][:, 0]

    def closest(policy, plan):
        liar = liar_to(rows, policy, plan)
        if plan is not None:
            liar.ask("squares_present", about=np.zeros(6))
        else:
            liar.ask("count_present", features=NO_NAMES)
        found = value_in_bins(liar, 0, 6)
        return np.abs(values / found - 1).min()

    assert closest(ALLOWED, {"n_components": 2}) > 1e-3
    monkeypatch.setattr("fedpca.solvers.robust.medians.MIN_CELL", 1)
    assert closest(None, None) < 1e-12
    assert closest(ALLOWED, {"n_components": 2}) > 1e-3  # the policy's min_count is enough


def test_histograms_narrow_in_their_order():
    liar = liar_to(tables(1), ALLOWED, {"n_components": 2})
    liar.ask("squares_present", about=np.zeros(6))

    def count(guess=0.0, shift=60, of=0, about=0.0, features=range(6)):
        m = len(features)
        return liar.ask(
            "count_values", features=np.array(features), about=np.full(m, about),
            guess=np.full(m, guess), shift=np.int64(shift), of=np.int64(of),
        )  # fmt: skip

    for wrong, why in (
        ({"shift": 54}, "count what the previous one did"),
        ({"of": 1}, "out of turn"),
        ({"about": 1.0}, "about 0"),
        ({"guess": 1.0}, "guesses of 0"),
        ({"features": [0, 0]}, "ascending"),
        ({"features": [0]}, "guesses of 0 for all columns"),
    ):
        with pytest.raises(Refused, match=why):
            count(**wrong)
    count()
    count(1.0, 54)
    count(1.5, 48, features=[0, 1])
    for wrong, why in (
        ({"guess": 1e9, "shift": 42, "features": [0]}, "bin of the previous guess"),
        ({"guess": 1.5, "shift": 36, "features": [0]}, "divide the bins"),
        ({"guess": 1.5, "shift": 42, "features": [2]}, "divide the bins"),
        ({"guess": 1.5, "shift": 42, "features": [0], "about": 1.0}, "same point"),
        ({"shift": 60}, "out of turn"),
        ({"of": 1, "about": 100.0}, "about the medians"),
    ):
        with pytest.raises(Refused, match=why):
            count(**wrong)


def test_a_moved_center_recovers_no_more_records_than_the_rounds_of_a_day_allow():
    rows = tables(1, n=200)
    for most, low, high in ((1, 50, 90), (None, 195, 200)):
        liar = liar_to(rows, replace(ALLOWED, max_runs_per_day=most))
        liar.begin(**ROBUST_PLAN)
        assert low <= score(moved_center(liar), rows[0]).records <= high
        assert "'hard_round' is out of turn" in liar.refusals[0]
    with pytest.raises(Refused, match="max_rounds=1000 exceeds 200"):
        liar_to(rows, ALLOWED, {"max_rounds": 1000})
