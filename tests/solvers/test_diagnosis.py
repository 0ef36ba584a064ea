"""A diagnosis finds planted ranks, odd sites, and the site that the components depend on."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest

from fedpca import FederatedPCA, Federation, PersonalizedPCA, Policy, Privacy, Site, diagnose
from fedpca.audit import attacks
from fedpca.audit.transcript import Published, RecordingEngine
from fedpca.engines.local import LocalEngine
from fedpca.errors import InputError, JournalError, PolicyRefused
from fedpca.linalg.dense import sine_of_angle
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import find_script
from fedpca.solvers import diagnosis
from fedpca.solvers.catalogue import find_solver
from fedpca.solvers.site_map import map_sites
from fedpca.testing import ScriptedEngine
from support import pooled

D, K = 12, 3
CLOSED = Policy(allow=("federated", "auto"))
OPENED = Policy(allow=("federated", "auto", "merge"), gather=True)
TURN = np.linalg.qr(np.random.default_rng(5).standard_normal((D, D)))[0]


def rows(rng, n):
    """Rows with K components far above noise that is the same in all directions."""
    spread = np.sqrt(np.r_[np.linspace(40, 20, K), np.ones(D - K)])
    return rng.standard_normal((n, D)) * spread @ TURN.T + 2


@pytest.fixture(scope="module")
def sites():
    rng = np.random.default_rng(0)
    return {name: rows(rng, n) for name, n in (("a", 80), ("b", 120), ("c", 70), ("d", 90))}


@pytest.fixture(scope="module")
def model(sites):
    return FederatedPCA(K).fit(sites)


@pytest.fixture(scope="module")
def found(model, sites):
    return diagnose(model, sites, n_permutations=20)


def by_products(monkeypatch):
    """Let the program take the way of tables with many features."""
    monkeypatch.setattr(diagnosis, "cheapest_exact", lambda *_: find_solver("lanczos"))
    monkeypatch.setattr(diagnosis, "LOOK", 6)


def residual_spectrum(model, sites):
    X = (pooled(sites.values()) - model.mean_) / model.scale_
    rest = X - X @ model.components_.T @ model.components_
    return np.linalg.svd(rest, compute_uv=False) ** 2 / np.sum(X**2)


def test_all_rules_find_the_planted_rank(found):
    rules = {"sign-flips", "permutations", "gavish-donoho", "broken-stick", "mp", "gap"}
    assert found.ranks.ranks == dict.fromkeys(rules, K)
    assert found.ranks.consensus == K
    assert found.ranks.agrees
    assert not found.ranks.unknown


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("center", [False, True])
def test_sums_tell_what_the_pooled_rows_would(sites, center, scale, monkeypatch):
    units = np.geomspace(1, 50, D)
    parts = {name: own * units for name, own in sites.items()}
    model = FederatedPCA(K, center=center, scale=scale).fit(parts)
    X = (pooled(parts.values()) - model.mean_) / model.scale_
    spectrum = residual_spectrum(model, parts)
    exact = [np.sum(spectrum**i) for i in (1, 2, 3)]
    for is_exact in (True, False):
        if not is_exact:
            by_products(monkeypatch)
        found = diagnose(model, parts, site_map=False)
        np.testing.assert_allclose(found.residual_traces, exact, rtol=1e-9 if is_exact else 1e-6)
        variances = np.linalg.svd(X, compute_uv=False) ** 2 / (len(X) - 1)
        np.testing.assert_allclose(found.variances, variances[: len(found.variances)], rtol=1e-3)
        assert (len(found.variances) == D) == is_exact
        assert found.total_variance == pytest.approx(variances.sum())
        own = (X**2).sum(axis=0) / (len(X) - 1) * model.scale_**2
        np.testing.assert_allclose(found.feature_variances, own)
        assert found.limits().q == pytest.approx(model.control_limits().q, rel=1e-3)


def test_cos2_is_the_squared_correlation_of_features_and_scores(model, sites, found):
    X, scores = pooled(sites.values()), model.transform(pooled(sites.values()))
    exact = np.corrcoef(X.T, scores.T)[:D, D:] ** 2
    np.testing.assert_allclose(found.cos2().values, exact, atol=1e-12)
    scaled = FederatedPCA(K, scale=True).fit(sites)
    exact = np.corrcoef(X.T, scaled.transform(X).T)[:D, D:] ** 2
    np.testing.assert_allclose(scaled.cos2().values, exact, atol=1e-12)


def test_a_run_by_products_estimates_the_traces(monkeypatch):
    by_products(monkeypatch)
    monkeypatch.setattr(diagnosis, "N_PROBES", 8)
    rng = np.random.default_rng(3)
    turn = 8 * np.linalg.qr(rng.standard_normal((150, 2)))[0].T
    parts = {n: rng.standard_normal((60, 2)) @ turn + rng.standard_normal((60, 150)) for n in "ab"}
    model = FederatedPCA(2, solver="lanczos").fit(parts)
    found = diagnose(model, parts, site_map=False)
    spectrum = residual_spectrum(model, parts)
    exact = [np.sum(spectrum**i) for i in (1, 2, 3)]
    np.testing.assert_allclose(found.residual_traces, exact, rtol=0.2)
    assert found.residual_traces[0] == pytest.approx(exact[0], rel=1e-9)
    assert found.ranks.ranks["sign-flips"] == 2
    assert "needs eigenvalues" in found.ranks.unknown["gavish-donoho"]
    assert {e["question"] for e in found.run_.history} <= {
        *attacks.TELLING_QUESTIONS,
        *attacks.BESIDE,
    }


def test_the_odd_site_is_found_with_the_direction_in_which_it_is_odd(sites):
    rng = np.random.default_rng(1)
    away, wide = (v / np.linalg.norm(v) for v in rng.standard_normal((2, D)))
    shifted = sites | {"b": sites["b"] + 4 * away}
    spread = sites | {"c": sites["c"] + 6 * rng.standard_normal((70, 1)) * wide}
    by_mean = diagnose(FederatedPCA(K).fit(shifted), shifted).sites
    assert by_mean.odd_sites == ["b"]
    assert by_mean.sites["b"].is_odd_in_mean
    assert abs(by_mean.sites["b"].mean_direction @ away) > 0.9
    by_spread = diagnose(FederatedPCA(K).fit(spread), spread).sites
    assert by_spread.odd_sites == ["c"]
    assert by_spread.sites["c"].is_odd_in_spread
    assert abs(by_spread.sites["c"].spread_direction @ wide) > 0.95
    assert by_spread.sites["c"].spread_change == pytest.approx(36, rel=0.3)
    assert not by_spread.sites["c"].is_odd_in_mean


def test_equal_sites_are_as_far_apart_as_chance_says(model):
    ratios = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        parts = {name: rows(rng, n) for name, n in (("a", 60), ("b", 200), ("c", 90))}
        mapped = diagnose(FederatedPCA(K).fit(parts), parts).sites
        assert mapped.odd_sites == []
        ratios += [(each.means_apart, each.spreads_apart) for each in mapped.sites.values()]
    np.testing.assert_allclose(np.mean(ratios, axis=0), 1, atol=0.25)


def test_variance_within_and_between_sites_adds_up(found, sites):
    X = pooled(sites.values())
    total = np.sum((X - X.mean(axis=0)) ** 2)
    for name, own in sites.items():
        each = found.sites.sites[name]
        mean = own.mean(axis=0)
        assert each.rows == pytest.approx(len(own) / len(X))
        assert each.within == pytest.approx(np.sum((own - mean) ** 2) / total)
        between = len(own) * np.sum((mean - X.mean(axis=0)) ** 2)
        assert each.between == pytest.approx(between / total)
        _, s, leading = np.linalg.svd(own - mean)
        angle = sine_of_angle(found.model.components_.T, leading[:K].T)
        assert np.sin(np.radians(each.angles[-1])) == pytest.approx(angle)
        explained = np.sum(((own - mean) @ found.model.components_.T) ** 2)
        assert each.explained == pytest.approx(explained / np.sum(s[:K] ** 2))
    assert sum(s.within + s.between for s in found.sites.sites.values()) == pytest.approx(1)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("coordinates", [600, 8])
def test_components_without_a_site_are_those_of_a_fit_without_it(center, coordinates, monkeypatch):
    monkeypatch.setattr("fedpca.solvers.site_map.MAX_COORDINATES", coordinates)
    rng = np.random.default_rng(4)
    parts = {
        name: rng.standard_normal((30, 2)) @ rng.standard_normal((2, 40)) + i * np.eye(40)[i]
        for i, name in enumerate("abc")
    }
    model = FederatedPCA(2, center=center).fit(parts)
    mapped = diagnose(model, parts).sites
    for name, each in mapped.sites.items():
        others = [own for other, own in parts.items() if other != name]
        left = FederatedPCA(2, center=center).fit(others).components_.T
        assert each.angle_without == pytest.approx(
            sine_of_angle(model.components_.T, left), abs=1e-6
        )
        assert sine_of_angle(left, each.components_without.T) < 1e-6
        change = np.abs(each.components_without - model.components_)
        assert change.max() <= 2 * each.angle_without + 1e-9


def test_the_model_depends_most_on_the_site_with_a_component_of_its_own(sites):
    rng = np.random.default_rng(2)
    own = np.linalg.qr(rng.standard_normal((D, 1)))[0].T
    parts = sites | {"d": sites["d"] + 15 * rng.standard_normal((90, 1)) * own}
    mapped = diagnose(FederatedPCA(1).fit(parts), parts).sites
    angles = {name: each.angle_without for name, each in mapped.sites.items()}
    assert max(angles, key=angles.get) == "d"
    assert angles["d"] > 0.5


@pytest.mark.parametrize("many", [False, True])
def test_closed_sites_answer_sums_and_show_no_summary(model, sites, found, many, monkeypatch):
    if many:
        by_products(monkeypatch)
    closed = [Site(own, name=name, policy=CLOSED) for name, own in sites.items()]
    told = diagnose(model, Federation.local(closed), n_permutations=5)
    assert told.sites is None
    assert "does not allow 'merge'" in told.why_no_sites
    assert "the sites' policies protect their rows" in told.ranks.unknown["permutations"]
    assert told.ranks.ranks["sign-flips"] == K
    np.testing.assert_allclose(told.residual_traces, found.residual_traces, rtol=1e-6)
    half = [
        Site(own, name=name, policy=Policy(allow=("federated", "auto", "merge")))
        for name, own in sites.items()
    ]
    assert "gather=false" in diagnose(model, Federation.local(half)).why_no_sites
    opened = [Site(own, name=name, policy=OPENED) for name, own in sites.items()]
    shown = diagnose(model, Federation.local(opened)).sites
    for name, each in shown.sites.items():
        assert each.angle_without == pytest.approx(found.sites.sites[name].angle_without)


def test_sites_with_few_rows_keep_their_flips_and_tell_the_rest():
    rng = np.random.default_rng(0)
    parts = {name: rows(rng, 40) for name in "abc"}
    closed = [Site(own, name=name, policy=CLOSED) for name, own in parts.items()]
    engine = ScriptedEngine(closed, lambda reply: reply.answer, hides_rows=True)
    for site in closed:
        site.is_in_process = False  # as if they were on other machines
    model = FederatedPCA(K).fit(parts)
    told = diagnose(model, Federation(engine), site_map=False, n_permutations=3)
    assert "in this process" in told.ranks.unknown["permutations"]
    assert "fewer than 60 rows" in told.ranks.unknown["sign-flips"]
    assert told.ranks.ranks["mp"] == K
    assert "site_map=False" in told.why_no_sites


def test_a_journal_keeps_the_sums_and_has_no_room_for_a_map(model, sites, tmp_path):
    told = diagnose(model, Federation.local(sites, journal=tmp_path / "run.journal"))
    assert "a new file" in told.why_no_sites
    asked = []
    again = Federation.local(sites, journal=tmp_path / "run.journal", on_round=asked.append)
    replayed = diagnose(model, again, site_map=False)
    np.testing.assert_array_equal(replayed.residual_traces, told.residual_traces)
    other = FederatedPCA(K - 1).fit(sites)
    with pytest.raises(JournalError):
        diagnose(other, Federation.local(sites, journal=tmp_path / "run.journal"))


def test_secure_sums_hide_the_sites(model, sites, found):
    told = diagnose(model, Federation.local(sites, secure=True))
    assert told.sites is None
    assert "secure sums hide" in told.why_no_sites
    np.testing.assert_allclose(told.residual_traces, found.residual_traces, rtol=1e-6)
    assert told.ranks.ranks["gavish-donoho"] == K


def test_columns_are_matched_by_name_and_weights_count(sites):
    names = [f"x{j}" for j in range(D)]
    frames = {name: pd.DataFrame(own, columns=names) for name, own in sites.items()}
    model = FederatedPCA(K).fit(frames)
    turned = {name: frame[names[::-1]] for name, frame in frames.items()}
    found = diagnose(model, turned, n_permutations=3)
    np.testing.assert_allclose(found.feature_variances, pooled(sites.values()).var(axis=0, ddof=1))
    assert found.ranks.ranks["permutations"] == K
    assert found.cos2().features == tuple(names)
    weights = {name: np.full(len(own), 2) for name, own in sites.items()}
    twice = FederatedPCA(K).fit(frames, sample_weight=weights)
    weighted = diagnose(twice, frames, sample_weight=weights, n_permutations=3)
    doubled = {name: np.vstack([own, own]) for name, own in sites.items()}
    same = diagnose(FederatedPCA(K).fit(doubled), doubled)
    np.testing.assert_allclose(weighted.feature_variances, same.feature_variances)
    for name, each in weighted.sites.sites.items():
        assert each.within == pytest.approx(same.sites.sites[name].within)
    assert "weights" in weighted.ranks.unknown["permutations"]


def test_sites_without_rows_and_with_one_row_are_no_trouble(sites):
    parts = sites | {"none": np.empty((0, D)), "one": sites["a"][:1]}
    model = FederatedPCA(K).fit(parts)
    mapped = diagnose(model, parts).sites
    assert "none" not in mapped.sites
    assert mapped.sites["one"].within == 0
    alone = diagnose(FederatedPCA(K).fit(sites["a"]), sites["a"]).sites
    assert alone.odd_sites == []
    assert alone.sites["site-1"].angle_without == 1
    constant = {name: np.ones((20, 4)) for name in "ab"}
    flat = diagnose(FederatedPCA(1).fit(constant), constant)
    assert flat.sites.odd_sites == []
    assert flat.residual_traces.tolist() == [0, 0, 0]


def test_what_cannot_be_diagnosed_is_refused_before_anything_is_asked(model, sites):
    with pytest.raises(InputError, match="takes a fitted FederatedPCA, not PersonalizedPCA"):
        diagnose(PersonalizedPCA(1, 1), sites)
    with pytest.raises(InputError, match="n_permutations=-1 must be a whole number"):
        diagnose(model, sites, n_permutations=-1)
    with pytest.raises(InputError, match="the sites have 5 columns, but the model has 12"):
        diagnose(model, {"a": np.ones((4, 5))})
    with pytest.raises(InputError, match="at least 2 rows, got 1"):
        diagnose(model, {"a": sites["a"][:1]})
    names = [f"x{j}" for j in range(D)]
    named = FederatedPCA(K).fit(pd.DataFrame(sites["a"], columns=names))
    with pytest.raises(InputError, match="the sites"):
        diagnose(named, pd.DataFrame(sites["a"], columns=[*names[1:], "other"]))
    private = FederatedPCA(K, privacy=Privacy(epsilon=1, delta=1e-6, row_bound=8))
    private.__dict__ |= {k: v for k, v in model.__dict__.items() if k.endswith("_")}
    with pytest.raises(InputError, match="differentially private"):
        diagnose(private, sites)


def test_a_site_map_shows_what_merge_shows(model, sites):
    """The attack on a description recovers a site's covariance, so it takes the word "merge"."""
    listener = RecordingEngine(LocalEngine(sites))
    given = {"center": True, "scale": False, "missing": "error", "n_components": D}
    program = partial(map_sites, model=model.model_, features=None, **given)
    identity = {"program": "SiteMap", "parameters": given}
    Federation(listener).run(program, identity=identity, seed=0)
    questions = {exchange.question for exchange in listener.transcript.rounds.values()}
    assert questions <= {*attacks.TELLING_QUESTIONS, *attacks.BESIDE}
    assert attacks.DESCRIBED in questions
    listener.transcript.model = Published(
        model.components_.T, model.singular_values_**2, model.noise_variance_, model.mean_
    )
    n_rows = {name: len(own) for name, own in sites.items()}
    for name, own in sites.items():
        A = own - model.mean_
        view = listener.transcript.heard(name, "summed", n_rows)
        described = [h for h in view.messages if h.question == attacks.DESCRIBED]
        estimate = attacks.as_sent([view._replace(messages=described)])
        np.testing.assert_allclose(estimate, A.T @ A, rtol=1e-8, atol=1e-8)
    plan = RunPlan("r", "SiteMap", {"n_components": 3, "solver": "merge"}, {"a": ""})
    assert find_script(plan).family == "merge"


def test_plans_that_ask_for_more_are_refused():
    plan = RunPlan("r", "Diagnosis", {"n_components": "auto", "solver": None}, {"a": ""})
    assert find_script(plan).family == "federated"
    for parameters in ({"n_components": 3}, {"n_components": "auto", "solver": "merge"}):
        with pytest.raises(PolicyRefused, match="a diagnosis must have"):
            find_script(RunPlan("r", "Diagnosis", parameters, {"a": ""}))
    private = {"differential": {"epsilon": 1.0, "delta": 1e-6, "row_bound": 1.0}}
    for program, parameters in (
        ("Diagnosis", {"n_components": "auto"}),
        ("SiteMap", {"n_components": 3}),
    ):
        with pytest.raises(PolicyRefused, match="no differentially private form"):
            find_script(RunPlan("r", program, parameters, {"a": ""}, privacy=private))
    with pytest.raises(PolicyRefused, match="not possible"):
        find_script(RunPlan("r", "SiteMap", {"n_components": 10**6}, {"a": ""}))


def test_a_closed_site_refuses_more_directions_than_the_plan_has(model, sites):
    asked = []

    def script(reply):
        asked.append(reply.question)
        return reply.answer

    opened = [Site(own, name=name, policy=OPENED) for name, own in sites.items()]
    diagnose(model, Federation(ScriptedEngine(opened, script)))
    assert asked.count("describe_site") == len(sites)
    assert asked.count("explained_energy") == 0


@pytest.mark.parametrize("quorum", [None, 1])
def test_a_site_that_keeps_its_summary_to_itself_is_not_lost_by_the_diagnosis(sites, quorum):
    kept = Site(sites["c"], name="c", policy=Policy(allow=("any",), gather=False))
    fed = Federation.local({**sites, "c": kept}, quorum=quorum)
    model = FederatedPCA(2, random_state=0).fit(fed)
    found = diagnose(model, fed, random_state=0)
    assert found.run_.sites == tuple("abcd")
    assert found.sites_run_.lost == []
    assert found.sites is None
    assert "'c'" in found.why_no_sites
