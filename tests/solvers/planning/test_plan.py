"""A plan is what a fit will be: the same bytes, about as many rounds, and the same refusals."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest

import fedpca
from fedpca import FederatedPCA, Federation, Policy, Privacy
from fedpca.errors import InputError, PolicyRefused
from fedpca.facts import as_plain
from fedpca.solvers import SOLVERS, Merge
from fedpca.solvers.catalogue import cheapest_exact
from fedpca.solvers.contract import covariance_product
from fedpca.solvers.costs import LANCZOS_ROUNDS, payload
from support import fitted_quietly, gapped_rows, guarded, solver_with

RNG = np.random.default_rng(0)
NAMES = [f"feature {j} \u00e4" for j in range(24)]
QUIET = {"flops": 1e10, "read_rate": 1e9}  # so that nothing is measured


SHORT = {"max_rounds": 4}  # so few that the fit and its rehearsal both run out of them


def frames(rows, names=NAMES):
    return {site: pd.DataFrame(own, columns=names) for site, own in rows.items()}


ROWS = {
    "north": gapped_rows(RNG, 90, 24, 3, offset=5),
    "s\u00fcd": gapped_rows(RNG, 60, 24, 3),
    "a site with a long name": gapped_rows(RNG, 9, 24, 3),
}
SIZES = {name: len(own) for name, own in ROWS.items()}


@pytest.mark.parametrize("solver", [*SOLVERS, "merge about the mean"])
@pytest.mark.parametrize("case", ["plain", "named and scaled", "gaps", "weights", "order"])
def test_planned_bytes_are_those_that_cross(solver, case):
    value = Merge(own_means=False) if solver not in SOLVERS else SOLVERS[solver]
    rows, features, more, weights = ROWS, 24, {}, None
    if case != "plain":
        rows, features = frames(ROWS), NAMES
    if case == "named and scaled":
        more = {"scale": True}
    elif case == "gaps":
        more = {"missing": "mean"}
        rows = {site: own.mask(RNG.random(own.shape) < 0.1) for site, own in rows.items()}
    elif case == "weights":
        weights = {site: np.ones(len(own)) for site, own in rows.items()}
    elif case == "order":
        rows = rows | {"north": rows["north"][NAMES[::-1]]}
    model = FederatedPCA(3, solver=value, random_state=0, **SHORT, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some run out of rounds
        run = model.fit(rows, sample_weight=weights).run_
    flags = {"weighted": weights is not None, "in_order": case != "order", "solvers": [value]}
    plan = fedpca.plan(SIZES, features, 3, **SHORT, **more, **flags, **QUIET).solvers[0]
    assert plan.is_counted
    assert (plan.bytes_up, plan.bytes_down) == (run.bytes_up, run.bytes_down)
    assert plan.rounds == run.rounds
    by_site = Counter()
    for entry in run.ledger:
        by_site[entry.site] += entry.bytes
    assert plan.site_bytes == max(by_site.values())


SHAPES = [(2, 40, 60, 2), (12, 5, 8, 1), (3, 30, 130, 4), (2, 90, 300, 3), (3, 310, 280, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("solver", SOLVERS)
def test_planned_bytes_are_those_that_cross_for_other_sizes(solver, shape):
    """Rehearsals have fewer features than the last two shapes."""
    n_sites, n, d, k = shape
    X = gapped_rows(RNG, n_sites * n, d, k)
    run = fitted_quietly(
        FederatedPCA(k, solver=solver, random_state=0, **SHORT),
        Federation.local(np.array_split(X, n_sites)),
    ).run_
    plan = fedpca.plan(n_sites * n, d, k, sites=n_sites, solvers=[solver], **SHORT, **QUIET)[solver]
    assert plan.is_counted
    assert (plan.bytes_up, plan.bytes_down) == (run.bytes_up, run.bytes_down)
    assert plan.rounds == run.rounds


@pytest.mark.parametrize(
    "policy",
    [Policy(min_rows_per_direction=0), Policy(gather=True, min_rows_per_direction=0)],
    ids=["closed", "gathers"],
)
def test_planned_bytes_know_what_a_policy_refuses(policy):
    model = FederatedPCA(3, solver="lanczos", random_state=0, **SHORT)
    run = fitted_quietly(model, Federation.local(guarded(ROWS, policy))).run_
    options = {"policy": policy, "solvers": ["lanczos"], **SHORT, **QUIET}
    plan = fedpca.plan(SIZES, 24, 3, **options)["lanczos"]
    assert (plan.bytes_up, plan.bytes_down) == (run.bytes_up, run.bytes_down)
    assert ("explained_energy" in plan.discloses) == policy.gather


@pytest.mark.parametrize("epsilon", [1.0, 1.5, math.inf])
def test_the_plan_knows_how_much_noise_a_site_asks_for(epsilon):
    privacy = Privacy(epsilon, delta=1e-6, row_bound=8.0)
    plan = fedpca.plan(SIZES, 24, 3, privacy=privacy, policy=Policy(), secure=True, **QUIET)
    refusals = [each.refusal for each in plan.solvers if not each.problem]
    assert refusals
    assert all(("run_epsilon=1" in refusal) == (epsilon > 1) for refusal in refusals)


@pytest.mark.parametrize("solver", [name for name, s in SOLVERS.items() if not s.seen])
def test_planned_bytes_of_secure_sums_are_nearly_those_that_cross(solver):
    fed = Federation.local(ROWS, secure=True)
    run = fitted_quietly(FederatedPCA(3, solver=solver, random_state=0, **SHORT), fed).run_
    options = {"secure": True, "solvers": [solver], **SHORT, **QUIET}
    plan = fedpca.plan(SIZES, 24, 3, **options)[solver]
    assert not plan.is_counted
    assert plan.bytes_up == pytest.approx(run.bytes_up, rel=0.02)
    assert plan.bytes_down == pytest.approx(run.bytes_down, rel=0.02)
    assert plan.discloses["count_and_sum"] == "masked"


@pytest.mark.parametrize("solver", ["covariance", "subspace-iteration"])
def test_planned_bytes_of_private_fits_are_nearly_those_that_cross(solver):
    privacy = Privacy(epsilon=5.0, delta=1e-6, row_bound=8.0)
    run = fitted_quietly(
        FederatedPCA(3, solver=solver, privacy=privacy), Federation.local(ROWS)
    ).run_
    plan = fedpca.plan(SIZES, 24, 3, privacy=privacy, secure=False, **QUIET)[solver]
    assert (plan.bytes_up, plan.bytes_down) == (run.bytes_up, run.bytes_down)
    assert plan.guarantee == "private"


D = 100
SPECTRA = {  # of the singular values, as in benchmarks/rounds.py, with fewer features
    "xi = 1.1": 1.1 ** -np.arange(D),
    "xi = 1.03": 1.03 ** -np.arange(D),
    "arithmetic": np.linspace(1, 0.01, D),
    "falling": 1 / np.sqrt(np.arange(1, D + 1)),
}
SENSITIVE = ("local-power", "faps")  # to how sites differ


def rows_with(variances, seed=0):
    """Rows with this scatter, and random directions."""
    rng, d = np.random.default_rng(seed), len(variances)
    U, V = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    return (U * np.sqrt(variances)) @ V.T


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        *((name, solver) for name in SPECTRA for solver in ("lanczos", "subspace-iteration")),
        *(("xi = 1.1", solver) for solver in SENSITIVE),
        *(("falling", solver) for solver in SENSITIVE),
    ],
)
def test_planned_rounds_are_within_30_percent_of_real_ones(name, solver):
    variances = SPECTRA[name] ** 2
    sites = np.array_split(rows_with(variances), 3)
    more = {"tol": 1e-6, "center": False}
    plan = fedpca.plan(D, D, 3, variances=variances, solvers=[solver], **more, **QUIET)[solver]
    model = FederatedPCA(3, solver=solver, random_state=1, **more)
    run = fitted_quietly(model, Federation.local(sites)).run_
    assert plan.rounds == pytest.approx(run.rounds, rel=0.3)
    assert plan.stop_reason == run.stop_reason


def test_many_features_are_planned_from_some_of_them():
    variances = 1.0 / np.arange(1, 801)
    run = (
        FederatedPCA(3, solver="subspace-iteration", center=False, random_state=0)
        .fit([np.diag(np.sqrt(variances))])
        .run_
    )
    plan = fedpca.plan(800, 800, 3, sites=1, solvers=["subspace-iteration"], center=False, **QUIET)[
        "subspace-iteration"
    ]
    assert plan.rounds == pytest.approx(run.rounds, rel=0.3)


def test_sites_with_fewer_rows_than_features_are_rehearsed_too():
    variances = np.r_[9.0, 7.0, np.full(8, 0.5), np.zeros(30)]
    rows = {"a": 4, "b": 5, "c": 6}
    plan = fedpca.plan(rows, 40, 2, variances=variances, solvers=["local-power", "faps"], **QUIET)
    assert all(each.stop_reason == "converged" for each in plan.solvers)
    alone = fedpca.plan(15, 40, 2, sites=1, variances=variances, solvers=["faps"], **QUIET)
    assert alone["faps"].stop_reason == "converged"


@pytest.mark.slow
def test_very_many_components_are_planned_from_some_of_them():
    options = {"sites": 9, "solvers": ["lanczos", "merge"], **QUIET}
    plan = fedpca.plan(10**6, 20_000, 100, **options)
    lanczos, merge = plan["lanczos"], plan["merge"]
    components = 8 * 20_000 * 100  # sent at the end to measure the explained variance
    blocks = lanczos.solver_rounds * payload(covariance_product, d=20_000, k=100)
    assert lanczos.site_bytes == pytest.approx(blocks + components, rel=0.01)
    assert LANCZOS_ROUNDS / 2 < lanczos.solver_rounds < 4 * LANCZOS_ROUNDS
    assert merge.site_bytes == pytest.approx(8 * 20_000 * 110 + components, rel=0.02)
    assert [lanczos.is_counted, merge.is_counted] == [False, True]


def test_auto_takes_what_the_plan_says():
    for d, k in ((20, 3), (300, 2), (900, 2)):
        plan = fedpca.plan(4000, d, k, solvers=["covariance", "lanczos"], **QUIET)
        assert plan.auto == plan.recommended == cheapest_exact(4000, d, k).name
    X = gapped_rows(RNG, 60, 400, 2)
    auto = fedpca.plan(60, 400, 2, solvers=["lanczos"], **QUIET).auto
    assert FederatedPCA(2).fit(np.array_split(X, 3)).run_.solver == auto == "lanczos"


def test_known_variances_may_recommend_another_solver_than_auto():
    flat = np.r_[np.full(9, 1.0), np.linspace(0.999, 0.99, 391)]
    plan = fedpca.plan(10_000, 400, 9, variances=flat, solvers=["covariance", "lanczos"], **QUIET)
    assert plan.auto == "covariance"
    gap = np.r_[np.full(9, 1.0), np.full(391, 1e-6)]
    plan = fedpca.plan(
        10_000, 400, 9, variances=gap, solvers=["covariance", "lanczos", "merge"], **QUIET
    )
    assert plan.recommended == "lanczos"
    assert "'auto', which does not know the variances, would take covariance" in plan.reason


@pytest.mark.parametrize(
    ("policy", "secure", "possible"),
    [
        (
            Policy(min_rows_per_direction=0),
            False,
            {"covariance", "lanczos", "subspace-iteration", "local-power", "faps"},
        ),
        (Policy(allow=("merge",), gather=True, min_rows_per_direction=0), False, {"merge"}),
        (Policy(min_sites=9), False, set()),
        (
            Policy(require=("secure",), min_rows_per_direction=0),
            True,
            {"covariance", "lanczos", "subspace-iteration", "local-power", "faps"},
        ),
        (
            Policy(allow=("any",), gather=True, min_count=1, min_rows_per_direction=0),
            False,
            set(SOLVERS),
        ),
    ],
    ids=["usual", "merge", "many sites", "secure", "any"],
)
def test_the_plan_knows_what_a_site_would_say(policy, secure, possible):
    plan = fedpca.plan(SIZES, 24, 3, policy=policy, secure=secure, **QUIET)
    assert {each.solver for each in plan.solvers if each.is_possible} == possible
    assert (plan.recommended is None) == (not possible)
    sites = guarded(ROWS, policy)
    for each in plan.solvers:
        model = FederatedPCA(3, solver=each.solver, random_state=0)
        if each.problem or each.solver in ("subspace-iteration", *SENSITIVE):
            continue
        if each.refusal:
            with pytest.raises(PolicyRefused) as refused:
                model.fit(Federation.local(sites, secure=secure))
            assert each.refusal.partition(";")[0] in str(refused.value)
        else:
            assert model.fit(Federation.local(sites, secure=secure)).run_.solver == each.solver
    if not possible:
        assert "no solver is possible" in plan.reason


def test_a_policy_may_be_a_file(tmp_path):
    (tmp_path / "policy.toml").write_text('allow = ["merge"]\nend = true\n')
    plan = fedpca.plan(90, 5, 2, policy=tmp_path / "policy.toml", **QUIET)
    assert plan["merge"].refusal.startswith(
        "FederatedPCA with solver 'merge' shows the coordinator"
    )
    assert "does not allow 'federated'" in plan["covariance"].refusal


def test_what_is_too_large_for_a_message_is_a_problem():
    plan = fedpca.plan(50_000, 30_000, 2, solvers=["covariance", "tsqr", "merge"], **QUIET)
    assert "would take 3,600,120,160 bytes" in plan["covariance"].problem
    assert plan.recommended == "merge"
    assert "lanczos" in plan.reason or "states how far off" in plan.reason


def test_the_bound_of_alike_sites_is_what_the_solver_states():
    variances = np.r_[9.0, 8.0, np.geomspace(1, 1e-4, 38)]
    whole = rows_with(variances)
    plan = fedpca.plan(160, 40, 2, sites=4, variances=variances, center=False, **QUIET)
    run = FederatedPCA(2, solver=Merge(own_means=False), center=False).fit([whole] * 4).run_
    assert plan["merge"].angle_bound == pytest.approx(run.angle_bound, rel=0.3)
    assert plan["covariance"].angle_bound == 0.0


def test_time_follows_from_the_speeds():
    slow = {"solvers": ["covariance", "lanczos"], **QUIET}
    base = fedpca.plan(10_000, 200, 5, **slow)
    far = fedpca.plan(10_000, 200, 5, latency=1.05, **slow)
    for each in base.solvers:
        assert far[each.solver].seconds - each.seconds == pytest.approx(each.rounds)
    narrow = fedpca.plan(10_000, 200, 5, bandwidth=1e4, **slow)
    for each in base.solvers:
        more = each.bytes * (1 / 1e4 - 1 / base.speed.bandwidth)
        assert narrow[each.solver].seconds - each.seconds == pytest.approx(more)
    weak = fedpca.plan(10_000, 200, 5, solvers=["covariance"], flops=1e7, read_rate=1e9)
    assert weak["covariance"].seconds > base["covariance"].seconds + 10


def test_speeds_that_are_not_given_are_measured():
    plan = fedpca.plan(100, 5, 2, solvers=["covariance"])
    assert plan.speed.flops > 1e7
    assert plan.speed.read_rate > 1e7


def test_a_plan_is_plain_values():
    plan = fedpca.plan(100, 5, 2, solvers=["covariance"], **QUIET)
    plain = json.loads(json.dumps(as_plain(plan.facts())))
    assert plain["solvers"][0]["bytes_up"] == plan["covariance"].bytes_up
    assert plain["recommended"] == "covariance"
    with pytest.raises(KeyError, match="the plan has covariance"):
        plan["lanczos"]


def test_a_rule_of_sites_makes_bytes_an_estimate():
    site = fedpca.plan(100, 5, 2, solvers=[solver_with("merge", site_components=0.9)], **QUIET)
    assert not site["merge"].is_counted


def test_only_lanczos_keeps_all_blocks_at_the_coordinator():
    """Both multiply the same blocks, but subspace iteration keeps only the last one."""
    options = {"solvers": ["lanczos", "subspace-iteration"], **QUIET}
    plan = fedpca.plan(10**5, 5000, 4, **options)
    lanczos, plain = plan["lanczos"], plan["subspace-iteration"]
    assert plain.solver_rounds > 3 * lanczos.solver_rounds
    assert plain.server_memory < lanczos.server_memory


def test_the_range_of_rounds_holds_for_rows_with_such_variances():
    variances = 1.0 / np.arange(1, 31)
    options = {"variances": variances, "solvers": ["subspace-iteration"], **QUIET}
    plan = fedpca.plan(600, 30, 3, **options)["subspace-iteration"]
    assert plan.fewest_rounds <= plan.rounds <= plan.most_rounds
    rounds = []
    for seed in range(12):
        X = np.random.default_rng(seed).standard_normal((600, 30)) * np.sqrt(variances)
        model = FederatedPCA(3, solver="subspace-iteration", random_state=seed)
        rounds.append(model.fit(np.array_split(X, 3)).run_.rounds)
    inside = [plan.fewest_rounds <= n <= plan.most_rounds for n in rounds]
    assert sum(inside) >= 9


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": 6}, "n_components=6 exceeds the 5 components"),
        ({"model": "auto"}, "n_components='auto' must be a whole number"),
        ({"rows": 1}, "rows=1 must be a whole number of at least 2"),
        ({"rows": {"north": 1}}, "at least 2 rows"),
        ({"features": 0}, "features=0 must be"),
        ({"sites": 0}, "sites=0 must be"),
        ({"sites": "north"}, "sites='north' must be a number or a list of names"),
        ({"sites": ["a", "a"]}, "no site twice"),
        ({"sites": 1, "secure": True}, "needs at least two sites"),
        ({"missing": "guess"}, "missing='guess' must be one of"),
        ({"variances": [1.0, -1.0]}, "variances must be at least 0"),
        ({"variances": [1.0] * 6}, "1 to 5 finite numbers"),
        ({"latency": -1}, "latency=-1 must be"),
        ({"bandwidth": 0}, "bandwidth=0 must be a positive number"),
        ({"read_rate": 0.0}, "read_rate=0.0 must be a positive number"),
        ({"solvers": ["auto"]}, "omit 'auto'"),
        ({"solvers": ["none"]}, "unknown solver 'none'"),
    ],
    ids=str,
)
def test_what_cannot_be_planned_is_refused(change, text):
    given = {"rows": 100, "features": 5, "model": 2, **change}
    with pytest.raises(InputError, match=text):
        fedpca.plan(**given)
