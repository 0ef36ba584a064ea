"""A plan of a personalized or robust fit is what the fit will be, as one of `FederatedPCA` is."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import fedpca
from fedpca import FederatedPCA, Federation, PersonalizedPCA, Policy, RobustPCA
from fedpca.cli.terminal import print_facts
from fedpca.errors import InputError, PolicyRefused
from fedpca.solvers import Stiefel
from fedpca.solvers.planning import choice
from fedpca.solvers.planning.rehearsal import Rehearsal, Stage, usual
from support import fitted_quietly, guarded

D = 12
NAMES = [f"feature {j} \u00e4" for j in range(D)]
QUIET = {"flops": 1e10, "read_rate": 1e9}
VARIANCES = np.r_[np.full(3, 4.0), np.full(D - 3, 0.3)]
SIZES = {"north": 70, "s\u00fcd": 50, "a site with a long name": 4}


def rows(seed=0, n_shared=2, sizes=SIZES, variances=VARIANCES):
    """Rows of sites that have the first components in common, and nothing else."""
    rng, d = np.random.default_rng(seed), len(variances)
    made = {}
    for name, n in sizes.items():
        Q = np.linalg.qr(rng.standard_normal((d - n_shared, d - n_shared)))[0]
        X = rng.standard_normal((n, d)) * np.sqrt(variances)
        made[name] = np.hstack([X[:, :n_shared], X[:, n_shared:] @ Q.T])
    return made


def spoiled(seed=0, sizes=SIZES, variances=VARIANCES):
    rng, d = np.random.default_rng(seed), len(variances)
    Q, size = np.linalg.qr(rng.standard_normal((d, d)))[0], np.sqrt(variances.mean())
    made = {site: X @ Q.T for site, X in rows(seed, d, sizes, variances).items()}
    for X in made.values():
        is_outlier = rng.random(X.shape) < 0.05
        X[is_outlier] += size * rng.uniform(-20, 20, is_outlier.sum())
    return made


CASES = {
    "power": PersonalizedPCA(2, 1),
    "stiefel": PersonalizedPCA(2, 1, solver="stiefel", random_state=np.int64(3)),
    "polar, scaled": PersonalizedPCA(2, 1, solver="polar", scale=True, center="common"),
    "ranks by site, gathered": PersonalizedPCA(
        2, dict.fromkeys(SIZES, 1) | {"s\u00fcd": 3}, gather=True
    ),
    "random start": PersonalizedPCA(1, 2, start="random", n_init=2, weights="rows"),
    "shared alone": PersonalizedPCA(2, 0),
    "local alone": PersonalizedPCA(0, 2),
    "auto": RobustPCA(2),
    "auto, bounded": RobustPCA(max_components=4),
    "threshold, scaled": RobustPCA(2, solver="threshold", scale=True),
    "least-squares": RobustPCA(2, solver="least-squares", center="none"),
    "dcf": RobustPCA(2, solver="dcf", center="mean"),
}


@pytest.mark.parametrize("case", CASES)
def test_planned_bytes_are_those_that_cross(case, monkeypatch):
    model = CASES[case].set_params(max_rounds=3, random_state=0)
    sites = rows() if isinstance(model, PersonalizedPCA) else spoiled()
    features, in_order = D, True
    if case in ("power", "auto", "ranks by site, gathered"):
        sites = {site: pd.DataFrame(own, columns=NAMES) for site, own in sites.items()}
        features, in_order = NAMES, case != "power"
        if not in_order:
            sites["north"] = sites["north"][NAMES[::-1]]
    run = fitted_quietly(model, Federation.local(sites)).run_
    if isinstance(model, RobustPCA):  # how fast medians and ranks are found depends on the values
        own = {site: np.asarray(rows) for site, rows in sites.items()}
        monkeypatch.setattr(choice, "with_outliers", lambda *_: own)
        monkeypatch.setattr(choice, "usual", lambda rehearse, **_: rehearse(0, False))
    plan = fedpca.plan(
        SIZES, features, model, solvers=[model.solver], in_order=in_order, **QUIET
    ).solvers[0]
    assert plan.is_counted
    assert plan.rounds == run.rounds
    assert (plan.bytes_up, plan.bytes_down) == (run.bytes_up, run.bytes_down)
    asked = {entry.question: entry.how for entry in run.ledger if entry.direction == "up"}
    assert plan.discloses == asked


def test_directions_of_many_features_are_compared_by_products():
    """A rehearsal has few features, but compares directions as the fit does."""
    sizes, variances = {"a": 60, "b": 50}, np.r_[VARIANCES, np.full(108, 0.1)]
    model = PersonalizedPCA(2, 1, max_rounds=2, n_init=2, random_state=0)
    run = fitted_quietly(model, Federation.local(rows(0, 2, sizes, variances))).run_
    assert any(entry.question == "basis_product" for entry in run.ledger)
    plan = fedpca.plan(sizes, 120, model, solvers=["power"], **QUIET)["power"]
    assert (plan.bytes_up, plan.bytes_down) == (run.bytes_up, run.bytes_down)


@pytest.mark.parametrize(
    "model",
    [PersonalizedPCA(2, 1), RobustPCA(3)],
    ids=str,
)
def test_planned_rounds_are_within_30_percent_of_real_ones(model):
    sizes, variances = {"a": 200, "b": 150, "c": 150}, np.r_[np.full(3, 4.0), np.full(22, 0.3)]
    make = rows if isinstance(model, PersonalizedPCA) else spoiled
    fits = [
        fitted_quietly(
            model.set_params(random_state=seed),
            Federation.local(make(seed, sizes=sizes, variances=variances)),
        ).run_
        for seed in (5, 6, 7)
    ]
    options = {"variances": variances, "solvers": [model.solver], **QUIET}
    plan = fedpca.plan(sizes, 25, model, **options).solvers[0]
    assert plan.rounds == pytest.approx(np.median([run.rounds for run in fits]), rel=0.3)
    assert plan.stop_reason == fits[0].stop_reason


def rehearsed(*lengths, iterates=True):
    """Rehearsals that take so many rounds, in turn; those of 500 run out of rounds."""
    tried = []

    class Ended(Rehearsal):
        iterates = True

    def rehearse(seed, _):
        tried.append(seed)
        n = lengths[seed]
        stage = Stage(None, {}, 1, {}, 1, 1, is_drawn=n % 10 == 5)
        return Ended(stage, [], n, "max_rounds" if n == 500 else "converged")

    Ended.iterates = iterates
    found = usual(rehearse, secure=False)
    return found.rounds, found.fewest, found.most, len(tried), found.stop_reason


def test_rehearsals_are_repeated_until_they_are_alike():
    for lengths, middle, n_tried in (
        ((20, 22, 24), 22, 3),
        ((500, 40, 90, 60, 50, 300, 70, 80, 100), 80, 9),
    ):
        rounds, fewest, most, n, reason = rehearsed(*lengths)
        assert (rounds, n, reason) == (middle, n_tried, "converged")
        assert (
            fewest < min(lengths) < max(lengths) <= most
        )  # few rehearsals do not show the extremes
    assert rehearsed(500, 500, 500) == (500, 500, 500, 3, "max_rounds")
    assert rehearsed(4, iterates=False) == (4, 4, 4, 1, "converged")


def test_rehearsals_on_drawn_rows_only_widen_the_range():
    rounds, fewest, most, _, _ = rehearsed(20, 25, 22)
    assert rounds == 20
    assert fewest < 20
    assert most > 25


def test_a_plan_tells_the_fewest_and_the_most_rounds(monkeypatch):
    def between(rehearse, **_):
        return replace(rehearse(0, False), fewest=38, most=350)

    monkeypatch.setattr(choice, "usual", between)
    plan = fedpca.plan(SIZES, D, RobustPCA(2), solvers=["auto"], **QUIET)["auto"]
    assert (plan.fewest_rounds, plan.most_rounds) == (38, 350)
    console = Console(width=240, file=io.StringIO())
    print_facts(console, fedpca.plan(SIZES, D, RobustPCA(2), **QUIET).facts())
    assert "38 to 350" in console.file.getvalue()


@pytest.fixture
def briefly(monkeypatch):
    """Rehearse once, where rounds do not matter."""
    monkeypatch.setattr(choice, "usual", lambda rehearse, **_: rehearse(0, False))


def test_the_plan_knows_what_a_site_would_say(briefly):
    open_to = {"personalized": PersonalizedPCA(2, 1, max_rounds=4)}
    open_to["robust"] = RobustPCA(2, max_rounds=4)
    sizes = {"a": 60, "b": 50, "c": 40}
    for word, model in open_to.items():
        for policy in (Policy(), Policy(allow=(word,)), Policy(allow=(word,), min_sites=9)):
            plan = fedpca.plan(sizes, D, model, policy=policy, solvers=[model.solver], **QUIET)
            fed = Federation.local(guarded(rows(sizes=sizes), policy))
            if plan.solvers[0].refusal:
                assert plan.recommended is None
                with pytest.raises(PolicyRefused) as refused:
                    model.fit(fed)
                assert plan.solvers[0].refusal.partition(";")[0] in str(refused.value)
            else:
                assert policy.allow == (word,)
                assert fitted_quietly(model, fed).run_.rounds > 1


def test_what_the_default_method_cannot_do_is_left_to_another(briefly):
    own = {"solvers": ["power"], "secure": True, **QUIET}
    gathered = fedpca.plan(SIZES, D, PersonalizedPCA(2, 1, gather=True), **own)
    assert gathered.recommended is None
    assert "secure sums hide" in gathered["power"].problem
    assert fedpca.plan(SIZES, D, PersonalizedPCA(2, 1), **own).recommended == "power"
    some = {"solvers": ["auto", "threshold"], **QUIET}
    bounded = fedpca.plan(SIZES, D, RobustPCA(max_components=3, solver="threshold"), **some)
    assert "requires the number of components" in bounded["threshold"].problem
    assert bounded.recommended == "auto"
    assert bounded.reason.endswith(bounded["threshold"].problem)


def test_an_estimator_brings_its_own_parameters_and_solver(briefly):
    own = PersonalizedPCA(2, 1, solver=Stiefel(step=0.5), max_rounds=4)
    plan = fedpca.plan(SIZES, D, own, **QUIET)
    assert [each.solver for each in plan.solvers] == ["power", "stiefel", "polar"]
    assert plan.auto == "stiefel"
    named = FederatedPCA(2, solver="lanczos", scale=True, tol=1e-6)
    by_keyword = fedpca.plan(SIZES, D, 2, scale=True, tol=1e-6, solvers=["lanczos"], **QUIET)
    by_estimator = fedpca.plan(SIZES, D, named, solvers=["lanczos"], **QUIET)
    assert by_estimator["lanczos"] == by_keyword["lanczos"]
    assert by_estimator.auto == "lanczos"


@pytest.mark.parametrize(
    ("model", "change", "text"),
    [
        (
            PersonalizedPCA(2, 1),
            {"scale": True},
            "scale must not be passed to plan for a PersonalizedPCA",
        ),
        (PersonalizedPCA(9, 9), {}, "exceeds n_features=12"),
        (PersonalizedPCA(2, {"north": 1}), {}, "one entry per site"),
        (PersonalizedPCA(2, 1), {"solvers": ["covariance"]}, "must be one of power"),
        (RobustPCA(), {}, "either n_components or max_components"),
        (RobustPCA(13), {}, "exceeds the 12 components"),
        (FederatedPCA("auto"), {}, "n_components='auto' must be a whole number"),
        (FederatedPCA(2, scale="binomial"), {}, "scale='binomial' must be one of"),
        (FederatedPCA(2, maf=0.1), {}, "how many variants are left"),
    ],
    ids=str,
)
def test_what_cannot_be_planned_is_refused(model, change, text):
    with pytest.raises(InputError, match=text):
        fedpca.plan(SIZES, D, model, **QUIET, **change)
