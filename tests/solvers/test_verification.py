"""A model is certified for the rows that it was fitted to, and drift is named."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedpca
from fedpca import FederatedPCA, Federation, PersonalizedPCA, Policy, Privacy, StreamingPCA
from fedpca.errors import InputError, PolicyRefused
from fedpca.estimators.verifying import claim_of
from fedpca.facts import as_plain
from fedpca.linalg.dense import sine_of_angle
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import FEDERATED, find_script
from fedpca.solvers import SOLVERS
from support import gapped_rows, guarded, pooled

RNG = np.random.default_rng(0)
NAMES = [f"f{j}" for j in range(12)]
ROWS = {
    name: gapped_rows(np.random.default_rng(i), n, 12, 3, offset=2.0)
    for i, (name, n) in enumerate([("north", 200), ("south", 160), ("west", 100)])
}
CLOSED = Policy()
GATHERS = Policy(gather=True)


def changed(rows, share=0.05, column=7, by=1.5):
    """The same rows, but at south a share of them has another value in one column."""
    south = np.array(rows["south"])
    south[: round(share * len(south)), column] += by
    return rows | {"south": south}


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_unchanged_rows_pass_and_changed_ones_are_named(solver, scale):
    model = FederatedPCA(3, solver=solver, scale=scale, random_state=0).fit(ROWS)
    verdict = fedpca.verify(model, ROWS, by_site=True)
    assert verdict.is_certified, verdict.in_words()
    assert verdict.changed_sites == {}
    is_exact = SOLVERS[solver].guarantee == "exact"
    rounding = 1e-12  # in products of rows; a merge of summaries takes none
    assert verdict.angle_bound < (1e-6 if is_exact else model.run_.angle_bound + rounding)
    drifted = fedpca.verify(model, changed(ROWS), by_site=True)
    assert not drifted.is_certified
    assert drifted["mean"].has_drifted
    assert drifted["mean"].where == "'column 7'"
    # 8 of 460 rows moved by 1.5
    assert drifted["mean"].now - drifted["mean"].then == pytest.approx(1.5 * 8 / 460)
    assert drifted["scale" if scale else "total variance"].has_drifted
    assert not drifted["number of rows"].has_drifted
    assert list(drifted.changed_sites) == ["south"]
    assert "mean along 'column 7' changed by" in drifted.in_words()
    assert drifted.in_words().endswith("the rows changed at south")


def test_the_bound_on_the_angle_holds_for_changed_rows():
    model = FederatedPCA(3).fit(ROWS)
    for by in (0.5, 3.0, 12.0):
        now = changed(ROWS, share=0.2, by=by)
        verdict = fedpca.verify(model, now)
        exact = FederatedPCA(3, solver="tsqr").fit(now)
        angle = sine_of_angle(exact.components_.T, model.components_.T)
        assert 1e-4 < angle <= verdict.angle_bound * (1 + 1e-6)
    assert fedpca.verify(model, changed(ROWS, by=0.5)).angle_bound < 0.1


def test_components_that_are_not_the_leading_ones_are_found_out():
    model = FederatedPCA(4).fit(ROWS)
    inner = model.model_
    keep = [0, 1, 3]  # eigenvectors, but one that leads is left out
    model.model_ = replace(
        inner,
        components=inner.components[keep],
        explained_variance=inner.explained_variance[keep],
        singular_values=inner.singular_values[keep],
    )
    verdict = fedpca.verify(model, ROWS)
    assert verdict.angle_bound == 1.0
    assert [each.name for each in verdict.drifts] == ["variance outside the components"]
    found = verdict["variance outside the components"]
    assert found.now <= inner.explained_variance[2] * (460 - 1) * (1 + 1e-9)


def without_gap(d):
    rows = {"a": RNG.standard_normal((500, d)) * np.linspace(1.0, 0.9, d)}
    model = FederatedPCA(3, random_state=0).fit(rows)
    return model, fedpca.verify(model, rows)


def test_a_gap_too_small_for_one_round_is_said():
    model, verdict = without_gap(60)
    assert verdict.is_certified
    assert verdict.angle_bound == 1.0
    assert "one round cannot bound the angle" in verdict.in_words()
    assert f"bounded the angle's sine by {model.run_.angle_bound:.1e}" in verdict.in_words()


def test_random_directions_that_span_all_that_is_outside_need_no_gap():
    _, verdict = without_gap(6)
    assert verdict.is_certified
    assert verdict.angle_bound < 1e-9


def test_all_components_are_exact_if_nothing_is_outside():
    verdict = fedpca.verify(FederatedPCA(None).fit(ROWS), ROWS)
    assert verdict.is_certified
    assert verdict.angle_bound == 0.0


@pytest.mark.parametrize("secure", [False, True])
def test_sites_that_are_closed_by_default_answer(secure):
    sites = guarded(ROWS, CLOSED)
    model = FederatedPCA(3, scale=True).fit(Federation.local(sites, secure=secure))
    verdict = fedpca.verify(model, Federation.local(sites, secure=secure), by_site=True)
    assert verdict.is_certified
    assert verdict.changed_sites is None
    hows = {entry.how for entry in verdict.run.ledger if entry.direction == "up"}
    kept = "masked" if secure else "summed"
    assert {e.question for e in verdict.run.ledger if e.how == kept} == {
        "count_and_sum",
        "squares",
        "standardize",
        "covariance_product",
    }
    assert {e.question for e in verdict.run.ledger if e.how == "seen"} == {"column_names"}
    assert hows == {kept, "seen"}
    now = guarded(changed(ROWS), CLOSED)
    assert fedpca.verify(model, Federation.local(now, secure=secure))["mean"].where == "'column 7'"


def test_a_site_that_lets_its_share_be_seen_is_named_and_only_on_request():
    model = FederatedPCA(3).fit(Federation.local(guarded(ROWS, GATHERS)))
    now = guarded(changed(ROWS), GATHERS)
    assert fedpca.verify(model, Federation.local(now)).changed_sites is None
    named = fedpca.verify(model, Federation.local(now), by_site=True)
    assert list(named.changed_sites) == ["south"]
    fewer = {name: ROWS[name] for name in ("north", "west")} | {"east": ROWS["south"]}
    named = fedpca.verify(model, fewer, by_site=True)
    assert named.is_certified  # the same rows at a site with another name
    few = fedpca.verify(model, {name: ROWS[name] for name in ("north", "west")}, by_site=True)
    assert list(few.changed_sites) == ["south"]
    assert few["number of rows"].change == pytest.approx(160 / 460)


def test_columns_are_matched_by_name(tmp_path):
    frames = {name: pd.DataFrame(own, columns=NAMES) for name, own in ROWS.items()}
    FederatedPCA(3).fit(frames).save(tmp_path / "model.fedpca")
    mixed = {name: frames[name][NAMES[::-1]] for name in ("north", "west")}
    mixed["south"] = frames["south"]  # whose columns are in another order than at the first site
    assert fedpca.verify(tmp_path / "model.fedpca", mixed).is_certified
    moved = frames["south"].copy()
    moved.loc[:9, "f4"] += 1.0
    verdict = fedpca.verify(tmp_path / "model.fedpca", mixed | {"south": moved})
    assert verdict["mean"].where == "'f4'"
    for names, text in ((NAMES[:-1], "have no columns f11"), ([*NAMES, "g"], "have columns g,")):
        other = {"north": pd.DataFrame(RNG.normal(size=(50, len(names))), columns=names)}
        with pytest.raises(InputError, match=text):
            fedpca.verify(tmp_path / "model.fedpca", other)


@pytest.mark.parametrize(
    "model",
    [
        FederatedPCA(2, center=False),
        FederatedPCA(12),
        FederatedPCA(None),
        FederatedPCA(3, missing="mean"),
        FederatedPCA(3, solver="lanczos", tol=1e-4),
        StreamingPCA(3),
        StreamingPCA(3, scale=True),
    ],
    ids=str,
)
def test_models_of_other_kinds_pass_too(model):
    rows = ROWS
    if getattr(model, "missing", "error") == "mean":
        rows = {
            name: np.where(RNG.random(own.shape) < 0.1, np.nan, own) for name, own in ROWS.items()
        }
    if isinstance(model, StreamingPCA):
        model.fit(pooled(list(rows.values())))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(rows)
    verdict = fedpca.verify(model, rows)
    assert verdict.is_certified, verdict.in_words()
    assert not fedpca.verify(model, changed(rows)).is_certified


def test_weights_count(tmp_path):
    weights = {name: RNG.integers(1, 4, len(own)).astype(float) for name, own in ROWS.items()}
    model = FederatedPCA(3).fit(ROWS, sample_weight=weights)
    assert fedpca.verify(model, ROWS, sample_weight=weights).is_certified
    assert fedpca.verify(model, ROWS)["total variance"].has_drifted


def test_offsets_and_odd_units_do_not_look_like_drift():
    units = np.geomspace(1e-6, 1e6, 12)
    rows = {name: own * units + 1e8 * units for name, own in ROWS.items()}
    rows["north"][:, 3] = rows["south"][:, 3] = rows["west"][:, 3] = 7.0  # constant
    model = FederatedPCA(3, scale=True).fit(rows)
    parts = {name: np.array_split(own, 2) for name, own in rows.items()}
    others = {f"{name}{i}": part for name, both in parts.items() for i, part in enumerate(both)}
    assert fedpca.verify(model, others).is_certified


def test_more_drift_may_be_accepted():
    model = FederatedPCA(3).fit(ROWS)
    now = changed(ROWS, by=0.2)
    assert not fedpca.verify(model, now).is_certified
    assert fedpca.verify(model, now, tol=0.1).is_certified


def test_a_verdict_is_plain_values():
    verdict = fedpca.verify(FederatedPCA(3).fit(ROWS), changed(ROWS))
    plain = json.loads(json.dumps(as_plain(verdict.facts())))
    assert plain["certified"] is False
    names = [each["name"] for each in plain["statistics"] if each["has_drifted"]]
    assert "mean" in names
    assert plain["rounds"] == 4
    with pytest.raises(KeyError, match="use one of number of rows"):
        verdict["median"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: PersonalizedPCA(1, 1, random_state=0).fit(ROWS),
            "PersonalizedPCA cannot be verified",
        ),
        (
            lambda: FederatedPCA(2, privacy=Privacy(epsilon=50, delta=1e-6, row_bound=9)).fit(ROWS),
            "noise for differential privacy",
        ),
        (
            lambda: FederatedPCA(2).fit(ROWS["north"][:, :5]),
            "the model has 5 features, but the sites",
        ),
    ],
)
def test_models_that_cannot_be_verified_are_refused(make, text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make()
    with pytest.raises(InputError, match=text):
        fedpca.verify(model, ROWS)


def test_a_damaged_model_and_a_bad_tolerance_are_refused():
    model = FederatedPCA(2).fit(ROWS)
    with pytest.raises(InputError, match="tol=0 must be a positive number"):
        fedpca.verify(model, ROWS, tol=0)
    model.model_.components[0] *= 2
    with pytest.raises(InputError, match="not orthonormal"):
        claim_of(model)


def declared(**parameters):
    given = {"n_components": 3, "center": True, "scale": False, "missing": "error", **parameters}
    return RunPlan("run", "verify", given, {"north": ""})


def test_the_script_has_one_product_and_no_answer_of_a_single_site_unless_asked():
    script = find_script(declared())
    names = [asked.name for asked in script.order.questions()]
    agreeing, rest = names[:2], names[2:]
    assert agreeing == ["column_names", "use_variants"]
    assert rest == ["count_and_sum", "standardize", "covariance_product"]
    assert script.family == FEDERATED
    after = script.order
    for name in names:
        after = after.after(name)
    assert list(after.next()) == []
    by_site = find_script(declared(by_site=True, scale=True))
    assert [asked.name for asked in by_site.order.questions()][-1] == "explained_energy"
    assert script.bounds["covariance_product.Z"] == "columns 1..23"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"n_components": "auto"}, "n_components='auto' must be a whole number"),
        ({"n_components": 0}, "n_components=0 must be"),
        ({"missing": "guess"}, "missing='guess'"),
        ({"by_site": 2}, "by_site=2 must be one of"),
        ({"rounds": 5}, "a parameter that 'verify' does not have"),
    ],
    ids=str,
)
def test_a_plan_that_verify_does_not_declare_is_refused(parameters, text):
    with pytest.raises(PolicyRefused, match=text):
        find_script(declared(**parameters))
