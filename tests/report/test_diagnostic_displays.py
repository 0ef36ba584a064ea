"""What diagnostic displays draw is what a diagnosis found."""

from __future__ import annotations

import json

import matplotlib as mpl
import numpy as np
import pytest

from fedpca import FederatedPCA, StreamingPCA, diagnose
from fedpca.errors import InputError
from fedpca.estimators.diagnosis import contributions, limits_section
from fedpca.facts import as_plain
from fedpca.report import (
    ControlChartDisplay,
    ScreeDisplay,
    SiteMapDisplay,
    StabilityDisplay,
)

mpl.use("Agg")
D, K = 9, 2


@pytest.fixture(scope="module")
def sites():
    rng = np.random.default_rng(0)
    mix = 3 * rng.normal(size=(K, D))
    parts = {f"s{i}": rng.normal(size=(60, K)) @ mix + rng.normal(size=(60, D)) for i in range(4)}
    return parts | {"far": parts["s0"] + 5 * np.eye(D)[6]}


@pytest.fixture(scope="module")
def found(sites):
    return diagnose(FederatedPCA(K).fit(sites), sites)


def test_a_scree_plot_has_a_mark_for_each_rule(found):
    drawn = ScreeDisplay.from_estimator(found.model, diagnosis=found)
    heights = [bar.get_height() for bar in drawn.ax_.patches]
    shares = found.variances / found.total_variance
    np.testing.assert_allclose(heights, shares[: len(heights)])
    assert len(heights) > K
    texts = {text.get_text() for text in drawn.ax_.texts}
    assert texts == {f"{name}: {k}" for name, k in found.ranks.ranks.items()}
    marks = [line for line in drawn.ax_.get_lines() if line.get_marker() == "v"]
    assert sorted(line.get_xdata()[0] - 0.5 for line in marks) == sorted(found.ranks.ranks.values())
    assert f"median of the rules: {found.ranks.consensus}" in [
        line.get_label() for line in drawn.ax_.get_lines()
    ]


def test_the_map_shows_which_site_is_odd(found, sites):
    drawn = SiteMapDisplay.from_diagnosis(found)
    assert {text.get_text() for text in drawn.ax_.texts} == set(sites)
    assert [name for name, odd in zip(drawn.sites, drawn.odd, strict=True) if odd] == ["far"]
    odd = next(c for c in drawn.ax_.collections if c.get_label() == "odd")
    np.testing.assert_allclose(odd.get_offsets()[0, 0], found.sites.sites["far"].means_apart)
    asked = SiteMapDisplay.from_estimator(found.model, sites)
    np.testing.assert_allclose(asked.means_apart, drawn.means_apart)


def test_the_sites_that_components_depend_on_come_first(found, sites):
    drawn = StabilityDisplay.from_estimator(found.model, sites)
    assert (np.diff(drawn.degrees) <= 0).all()
    sine = found.sites.sites[drawn.sites[0]].angle_without
    assert drawn.degrees[0] == pytest.approx(np.degrees(np.arcsin(sine)))
    assert len(drawn.ax_.patches) == len(sites)


def test_sites_that_show_nothing_are_not_drawn(found, sites):
    silent = diagnose(found.model, sites, site_map=False)
    for display in (SiteMapDisplay, StabilityDisplay):
        with pytest.raises(InputError, match="there is no map of sites to draw: it was not asked"):
            display.from_diagnosis(silent)


def test_a_control_chart_tells_rows_beyond_limits_from_others(found, sites):
    X = sites["s1"].copy()
    X[7] += 40 * np.eye(D)[3]
    drawn = ControlChartDisplay.from_estimator(found.model, X, limits=found.limits())
    flagged = found.model.flag_rows(X, found.limits()).flagged
    beyond = drawn.ax_.collections[1].get_offsets()
    assert len(beyond) == flagged.sum() > 0
    assert "7" in {text.get_text() for text in drawn.ax_.texts}
    assert len(drawn.ax_.collections[0].get_offsets()) == (~flagged).sum()
    groups = np.repeat(["a", "b"], 30)
    drawn = ControlChartDisplay.from_estimator(found.model, X, groups=groups)
    assert [text.get_text() for text in drawn.ax_.get_legend().get_texts()] == ["a", "b"]
    with pytest.raises(InputError, match="groups has 1 labels; pass one for each of the 60 rows"):
        ControlChartDisplay.from_estimator(found.model, X, groups=["a"])
    with pytest.raises(InputError, match="requires a FederatedPCA, got StreamingPCA"):
        ControlChartDisplay.from_estimator(StreamingPCA(2).fit(X), X)
    everything = FederatedPCA().fit(X)  # no row is beyond the limit of nothing
    assert not ControlChartDisplay.from_estimator(everything, X).q.max() > 1e-9


def test_facts_say_what_is_known_and_what_is_not(found, sites):
    whole = as_plain(found.facts())
    assert json.loads(json.dumps(whole)) == whole
    assert whole["ranks"]["consensus"] == found.ranks.consensus
    assert whole["cost"]["bytes_up"] == found.run_.bytes_up + found.sites_run_.bytes_up
    far = next(site for site in whole["sites"] if site["site"] == "far")
    assert next(iter(far["odd"]["mean"])) == "column 6"
    changed = far["most_changed_loading"]
    left = found.sites.sites["far"].components_without
    assert changed["without"] in left
    features, cos2 = contributions(found.model)
    assert [number for number, _ in features.rows] == ["1", "2"]
    assert cos2 is None
    assert contributions(FederatedPCA(2, scale=True).fit(sites))[1]["pc1"]["column 0"] >= 0
    assert limits_section(found.model)["basis"].value == "residual spectrum"
    assert limits_section(FederatedPCA(3).fit(sites["s0"][:4]))["limits"].value is None
