"""Each site's part in the result is told, and a site that dominates it is named in a warning."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, PersonalizedPCA, RobustPCA, load
from fedpca.coordinator.record import RunRecord
from fedpca.linalg.dense import sine_of_angle
from fedpca.protocol.message import compose, decode, encode
from fedpca.solvers.catalogue import PERSONALIZED, ROBUST, SOLVERS
from fedpca.solvers.influence import SitePart, angles_without
from fedpca.testing import ScriptedEngine
from support import gapped_rows, low_rank_rows, pooled, solver_with

RNG = np.random.default_rng(8)
SITES = {
    name: gapped_rows(RNG, n, 7, 2, offset=shift)
    for name, n, shift in (("a", 40, 0.0), ("b", 30, 1.0), ("c", 80, -1.0))
}
SEES_PARTS = ("merge", "average", "tsqr")  # solvers that gather what angles need


@pytest.mark.parametrize("solver", SOLVERS)
def test_shares_are_those_of_the_pooled_rows(solver):
    influence = FederatedPCA(2, solver=solver, random_state=0).fit(SITES).run_.influence
    X = pooled(SITES.values())
    squares = {name: np.sum((rows - X.mean(axis=0)) ** 2) for name, rows in SITES.items()}
    for name, rows in SITES.items():
        assert influence[name]["rows"] == pytest.approx(len(rows) / len(X))
        assert influence[name]["variance"] == pytest.approx(squares[name] / sum(squares.values()))
        others = np.vstack([each for other, each in SITES.items() if other != name])
        left = np.sum((others - others.mean(axis=0)) ** 2)
        assert influence[name]["caused"] == pytest.approx(1 - left / sum(squares.values()))
        assert ("angle" in influence[name]) == (solver in SEES_PARTS)


@pytest.mark.parametrize("d", [7, 400])  # fewer and more features than directions
def test_the_angle_is_that_to_a_fit_without_the_site(d):
    rng = np.random.default_rng(0)
    sites = {name: gapped_rows(rng, 30, d, 2, offset=i) for i, name in enumerate("abc")}
    model = FederatedPCA(2, solver=solver_with("merge", site_components=30)).fit(sites)
    for name in sites:
        others = [rows for other, rows in sites.items() if other != name]
        left = FederatedPCA(2, solver="tsqr").fit(others)
        angle = sine_of_angle(model.components_.T, left.components_.T)
        assert model.run_.influence[name]["angle"] == pytest.approx(angle, rel=1e-4)


def test_the_angle_without_the_only_site_with_rows_is_the_largest():
    rows = np.diag([3.0, 2.0, 1.0])
    nothing = SitePart(np.empty((0, 3)), 0, np.zeros(3))
    angles = angles_without([SitePart(rows, 3, np.zeros(3)), nothing], np.eye(3, 2))
    assert angles == [1.0, pytest.approx(0.0, abs=1e-12)]


def test_angles_are_left_out_if_they_would_take_long(monkeypatch):
    monkeypatch.setattr("fedpca.solvers.influence.MAX_FLOPS", 10.0)
    run = FederatedPCA(2, solver="tsqr").fit(SITES).run_
    assert all(set(known) == {"rows", "variance", "caused"} for known in run.influence.values())


def off_by_a_million(question=None):
    """A federation in which one site's floats are a million times too large."""

    def script(reply):
        if reply.site != "b" or question not in (None, reply.question):
            return reply.answer
        message = decode(reply.answer)
        larger = {
            name: array * 1e6 if array.dtype == np.float64 and name not in KEPT else array
            for name, array in message.arrays.items()
        }
        return encode(compose(message.header, larger))

    return Federation(ScriptedEngine(SITES, script), quorum=2)


KEPT = ("n", "directions", "mean", "mean_rest", "total", "explained")


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_answer_that_is_possible_but_off_by_a_million_is_flagged(solver):
    with pytest.warns(UserWarning, match=r"site 'b' has 20.0% of the rows but causes (99|100)"):
        model = FederatedPCA(2, solver=solver, random_state=0).fit({**SITES, "b": SITES["b"] * 1e6})
    assert model.run_.dominant_site == "b"


@pytest.mark.parametrize(
    ("solver", "question"),
    [
        ("covariance", "covariance_triangle"),
        ("tsqr", "triangular_factor"),
        ("lanczos", "standardize"),
    ],
)
def test_a_message_off_by_a_million_is_flagged(solver, question):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = FederatedPCA(2, solver=solver, random_state=0).fit(off_by_a_million(question))
    assert model.run_.dominant_site == "b"
    assert any("site 'b' has 20.0% of the rows" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("question", ["covariance_product", "local_power_steps"])
def test_products_beyond_the_sites_own_energy_lose_the_site(question):
    solver = {"covariance_product": "lanczos", "local_power_steps": "local-power"}[question]
    model = FederatedPCA(2, solver=solver, random_state=0).fit(off_by_a_million(question))
    assert [loss["site"] for loss in model.run_.lost] == ["b"]
    assert "exceeds the sum of squares of the site's rows" in model.run_.lost[0]["reason"]


@pytest.mark.parametrize(
    "sites",
    [
        [SITES["a"]],
        [SITES["a"], SITES["a"]],
        [SITES["a"], gapped_rows(RNG, 4000, 7, 2)],
        [SITES["a"], SITES["a"] * 3],
        [SITES["a"], SITES["b"][:0]],
        [SITES["a"][:0], SITES["a"][:1], SITES["b"]],
        [SITES["a"], SITES["a"] + 1000],
        [SITES["a"], SITES["b"] + 1000, SITES["c"] + 2000],
        {"whole": gapped_rows(RNG, 3000, 7, 2), "few": gapped_rows(RNG, 3, 7, 2, offset=4.0)},
    ],
    ids=[
        "one",
        "equal",
        "large and small",
        "three times",
        "empty",
        "one row",
        "apart",
        "far apart",
        "few rows",
    ],
)
@pytest.mark.parametrize("solver", ["covariance", "lanczos", "merge", "tsqr"])
def test_ordinary_sites_do_not_warn(sites, solver):
    model = FederatedPCA(2, solver=solver, random_state=0).fit(sites)  # warnings are errors
    assert model.run_.dominant_site is None


def test_a_mean_about_zero_is_no_warning():
    sites = [SITES["a"], SITES["b"] + 100]
    assert FederatedPCA(2, solver="merge", center=False).fit(sites).run_.influence


@pytest.mark.parametrize("weights", ["rows", "site"])
@pytest.mark.parametrize("method", PERSONALIZED)
def test_weights_count_in_place_of_rows(method, weights):
    rng = np.random.default_rng(1)
    large, small = rng.standard_normal((3000, 5)), 3.2 * rng.standard_normal((30, 5))
    rows = {"large": large * [9, 2, 1, 1, 1], "small": small * [9, 1, 2, 1, 1]}
    model = PersonalizedPCA(1, 1, solver=method, weights=weights, random_state=0, tol=1e-4)
    influence = model.fit(rows).run_.influence
    assert influence["small"]["rows"] == pytest.approx(30 / 3030)
    # weights that are row counts are not told twice
    assert influence["small"].get("weight") == (None if weights == "rows" else pytest.approx(0.5))
    assert (influence["small"]["variance"] > 0.85) == (weights == "site")
    assert model.run_.dominant_site is None


@pytest.mark.parametrize("method", ROBUST)
@pytest.mark.filterwarnings("ignore:solver")
@pytest.mark.filterwarnings("ignore:no rank")
def test_a_robust_fit_tells_shares_of_the_variance_along_its_components(method):
    X = low_rank_rows(90, 12, 2, share=0.02)[0]
    ranks = {"n_components": 2} if ROBUST[method].needs_rank else {"max_components": 2}
    model = RobustPCA(**ranks, solver=method, random_state=0, max_rounds=50)
    shares = model.fit(dict(zip("abc", np.split(X, [20, 50]), strict=True))).run_.influence.values()
    for kind in ("rows", "variance"):
        assert sum(share[kind] for share in shares) == pytest.approx(1.0)


def test_a_site_dominates_only_with_much_more_variance_than_rows():
    def dominant(rows, variance):
        return RunRecord(influence={"a": {"rows": rows, "variance": variance}}).dominant_site

    assert dominant(0.5, 0.995) == "a"
    assert dominant(0.5, 0.95) is None
    assert dominant(0.01, 0.89) is None
    assert dominant(0.6, 1.0) is None
    assert dominant(1.0, 1.0) is None
    assert RunRecord(influence={"a": {"variance": 1.0}}).dominant_site is None  # rows unknown
    assert RunRecord(influence={"a": {"rows": 0.1}}).dominant_site is None


def test_a_model_file_does_not_tell_how_many_rows_a_site_has(tmp_path):
    model = FederatedPCA(2, solver="merge").fit(SITES)
    model.save(tmp_path / "model")
    assert model.run_.influence
    assert load(tmp_path / "model").run_.influence == {}
    assert "influence" not in json.dumps(model.run_.to_header())


def test_a_resumed_fit_tells_what_it_knows(tmp_path):
    for solver in ("covariance", "merge"):
        journal = tmp_path / solver
        first = FederatedPCA(2, solver=solver, random_state=0)
        first.fit(Federation.local(SITES, journal=journal))
        again = FederatedPCA(2, solver=solver, random_state=0)
        again.fit(Federation.local(SITES, journal=journal))
        # a journal of sums has no site's own numbers
        assert again.run_.influence == ({} if solver == "covariance" else first.run_.influence)


@pytest.mark.parametrize("solver", ["covariance", "tsqr", "merge", "average"])
def test_rows_with_weights_have_the_influence_of_repeated_rows(solver):
    rng = np.random.default_rng(0)
    rows = {"a": rng.standard_normal((1000, 5)), "b": rng.standard_normal((10, 5)) + 1}
    counts = {"a": np.ones(1000), "b": np.full(10, 1000.0)}
    weighted = FederatedPCA(2, solver=solver).fit(rows, sample_weight=counts).run_.influence
    repeated = FederatedPCA(2, solver=solver).fit({**rows, "b": np.tile(rows["b"], (1000, 1))})
    for name, known in repeated.run_.influence.items():
        assert weighted[name]["weight"] == pytest.approx(known["rows"])
        assert weighted[name]["rows"] == pytest.approx(len(rows[name]) / 1010)
        for kind in ("variance", "caused"):
            assert weighted[name][kind] == pytest.approx(known[kind]), kind


@pytest.mark.parametrize("solver", ["covariance", "lanczos", "merge", "tsqr"])
def test_a_site_that_claims_nearly_all_rows_is_named_in_a_warning(solver):
    """Nobody can check a row count, so the user is told whose rows the components describe."""

    def script(reply):
        message = decode(reply.answer)
        if reply.site != "b" or "n" not in message.arrays:
            return reply.answer
        claims = {k: v * 10**7 for k, v in message.arrays.items() if k in ("n", "weight", "total")}
        return encode(compose(message.header, {**message.arrays, **claims}))

    fed = Federation(ScriptedEngine(SITES, script))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = FederatedPCA(2, solver=solver, random_state=0).fit(fed).run_
    assert run.heavy_site == "b"
    assert [str(each.message) for each in caught if "site 'b' claims" in str(each.message)]
    assert FederatedPCA(2, solver=solver).fit(SITES).run_.heavy_site is None
