"""Sites that follow a plan answer what `PersonalizedPCA` asks, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca import Federation, PersonalizedPCA, Policy, Site
from fedpca.errors import PolicyRefused
from fedpca.protocol.message import compose
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.script import find_script
from fedpca.solvers import Polar, Stiefel
from fedpca.solvers.personalized.at_site import own_header, to_bytes
from fedpca.testing.scripted import ScriptedEngine
from support import assert_same_bits, fitted_quietly, guarded

RULES = {"min_rows": 10, "min_sites": 2, "min_rows_per_direction": 0}  # some tables are tiny
STRICT = Policy(allow=("personalized",), **RULES)
STRICT_SHOWING = Policy(allow=("personalized",), gather=True, **RULES)


def rows_by_site(n=40, d=8, n_sites=3):
    rng = np.random.default_rng(3)
    shared = rng.standard_normal((2, d))
    return {
        name: 4 * rng.standard_normal((n + 5 * i, 2)) @ shared
        + 3 * rng.standard_normal((n + 5 * i, 1)) @ rng.standard_normal((1, d))
        + rng.standard_normal((n + 5 * i, d))
        for i, name in enumerate(("north", "south", "west")[:n_sites])
    }


CASES = {
    "power": {},
    "stiefel": {"solver": "stiefel"},
    "polar with options": {"solver": Polar(step=0.01, retraction="qr"), "max_rounds": 40},
    "stiefel by qr": {"solver": Stiefel(retraction="qr")},
    "one start": {"n_init": 1},
    "from the average": {"start": "average"},
    "from random directions": {"start": "random"},
    "random steps": {"start": "random", "solver": "stiefel"},
    "no shared": {"n_shared": 0},
    "no local": {"n_local": 0},
    "ranks by site": {"n_local": {"west": 2, "south": 0, "north": 1}},
    "common center": {"center": "common", "weights": "rows"},
    "scaled": {"scale": True},
    "common center, scaled": {"center": "common", "scale": True},
    "no center": {"center": "none"},
    "tied": {"n_shared": 1, "n_local": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_honest_runs_pass_under_a_strict_policy_with_the_same_bits(case, gather):
    options = {"n_shared": 2, "n_local": 1, "random_state": 0, "gather": gather} | CASES[case]
    rows = rows_by_site()
    policy = STRICT_SHOWING if gather else STRICT
    plain = fitted_quietly(PersonalizedPCA(**options), Federation.local(guarded(rows, None)))
    strict = fitted_quietly(PersonalizedPCA(**options), Federation.local(guarded(rows, policy)))
    if gather:
        assert_same_bits(plain, strict, "objective_")
    else:  # the last question, for each site's share of the variance, is refused
        assert plain.components_.tobytes() == strict.components_.tobytes()
        kept = [e for e in plain.run_.ledger if e.question != "site_shares"]
        assert kept == [e for e in strict.run_.ledger if e.question != "site_shares"]
        assert strict.site_variance_ == {}


def test_wide_rows_pass_by_products():
    rng = np.random.default_rng(0)
    rows = {name: rng.standard_normal((12, 400)) for name in ("north", "south")}
    options = {"n_shared": 1, "n_local": 1, "random_state": 0, "gather": False, "n_init": 2}
    plain = fitted_quietly(PersonalizedPCA(**options), Federation.local(guarded(rows, None)))
    strict = fitted_quietly(PersonalizedPCA(**options), Federation.local(guarded(rows, STRICT)))
    assert any(e.question == "basis_product" for e in plain.run_.ledger)
    assert plain.components_.tobytes() == strict.components_.tobytes()


@pytest.mark.parametrize("lost_in", ["begin_personalized", "power_step", "finish_personalized"])
def test_a_run_goes_on_without_a_lost_site_under_a_policy(lost_in):
    def lose(reply):
        return None if (reply.site, reply.question) == ("west", lost_in) else reply.answer

    def fit(policy):
        engine = ScriptedEngine(guarded(rows_by_site(), policy), lose)
        return fitted_quietly(
            PersonalizedPCA(2, 1, random_state=0, gather=True), Federation(engine, quorum=2)
        )

    plain, strict = fit(None), fit(STRICT_SHOWING)
    assert strict.run_.sites == ("north", "south")
    assert plain.components_.tobytes() == strict.components_.tobytes()


def test_a_killed_run_resumes_under_a_policy(tmp_path):
    rows = rows_by_site()
    whole = fitted_quietly(
        PersonalizedPCA(2, 1, random_state=0), Federation.local(guarded(rows, STRICT))
    )

    def crash(reply):
        if reply.question == "finish_personalized":
            raise KeyboardInterrupt
        return reply.answer

    journal = tmp_path / "run.journal"
    engine = ScriptedEngine(guarded(rows, STRICT), crash, journal=journal)
    with pytest.raises(KeyboardInterrupt):
        fitted_quietly(PersonalizedPCA(2, 1, random_state=0), Federation(engine, journal=journal))
    engine = ScriptedEngine(guarded(rows, STRICT), journal=journal)
    resumed = fitted_quietly(
        PersonalizedPCA(2, 1, random_state=0), Federation(engine, journal=journal)
    )
    assert resumed.components_.tobytes() == whole.components_.tobytes()


def test_gathered_local_parts_need_a_policy_that_shows_answers():
    fed = Federation.local(guarded(rows_by_site(), STRICT))
    with pytest.raises(PolicyRefused, match="shows the coordinator this site's own answers"):
        PersonalizedPCA(2, 1, gather=True).fit(fed)


def test_the_default_policy_refuses_the_program_by_name():
    fed = Federation.local(guarded(rows_by_site(), Policy()))
    with pytest.raises(PolicyRefused, match="does not allow 'personalized'"):
        PersonalizedPCA(2, 1).fit(fed)


class Liar:
    """A coordinator that asks one site under a policy what it likes."""

    def __init__(self, **options):
        given = {
            "n_shared": 2, "n_local": 1, "start": "stack", "n_init": 2, "weights": "site",
            "center": "site", "scale": False, "gather": False, "tol": 1e-9, "max_rounds": 5,
            "solver": {"name": "power"},
        }  # fmt: skip
        self.plan = RunPlan("run", "PersonalizedPCA", given | options, {"a": "", "b": ""})
        rows = rows_by_site()["north"]
        self.site = Site(rows, name="a", policy=Policy(allow=("personalized",)))
        self.round = 0
        self.tell("declare_run", plan=np.frombuffer(self.plan.to_bytes(), np.uint8))
        self.tell("column_names", verb="gather")

    def tell(self, question, verb="sum", **arrays):
        header = {
            "run": "run.0", "round": self.round, "question": question, "verb": verb,
            "n_sites": 2, "memory": 0,
        }  # fmt: skip
        reply = self.site.answer(compose(header, {k: np.asarray(v) for k, v in arrays.items()}))
        self.round += "error" not in reply.header
        return reply.header.get("text", "")

    def begin(self, **changed):
        d = 8
        values = dict(find_script(self.plan).values)
        asked = {
            "features": np.empty(0, np.uint8), "mean": np.zeros(d), "scale": np.ones(d),
            "prepares_start": np.int64(1), "ranks": values["ranks"],
            **{k: np.int64(values[k]) for k in ("own_mean", "by_rows", "n_shared", "n_products")},
        }  # fmt: skip
        return self.tell("begin_personalized", **(asked | changed))


def test_a_coordinator_that_lies_is_refused_by_name():
    liar, U = Liar(), np.eye(8)[:, :2]
    assert "out of turn" in liar.tell("power_step", U=U[None])
    assert "'mean'" in liar.begin(mean=np.ones(8))
    assert "'scale'" in liar.begin(scale=np.full(8, 2.0))
    assert "'n_shared'" in liar.begin(n_shared=np.int64(7))
    assert "'ranks'" in liar.begin(ranks=to_bytes(5))
    assert "'n_products'" in liar.begin(n_products=np.int64(2**40))
    assert "'own_mean'" in liar.begin(own_mean=np.int64(0))
    assert liar.begin() == ""
    assert "orthonormal" in liar.tell("power_step", U=3 * U[None])
    assert "at most 2" in liar.tell("power_step", U=np.stack([U] * 3))
    assert "at most 3" in liar.tell("power_step", U=np.eye(8)[None, :, :4])
    assert "own answer" in liar.tell("whole_basis", verb="gather", by_variance=np.int64(0))
    assert "out of turn" in liar.tell("stiefel_step", U=U, step=1.0, back=0, by_qr=0)
    for _ in range(5):
        assert liar.tell("power_step", U=U[None]) == ""
    assert "out of turn" in liar.tell("power_step", U=U[None])
    header = to_bytes({})
    assert "orthonormal" in liar.tell(
        "finish_personalized", U=2 * U, variance=np.ones(2), total=1.0, header=header
    )


def test_more_components_than_features_are_refused_at_the_site():
    assert "exceeds n_features=8" in Liar(n_shared=8).begin()


def test_a_sites_model_file_takes_only_the_header_of_a_model():
    header = {"features": None, "n_samples": 3, "parameters": {}}
    assert own_header(to_bytes(header)) == header
    for wrong in ({}, {**header, "run": {}}, {**header, "parameters": []}, [], 3):
        with pytest.raises(Exception, match="and nothing else"):
            own_header(to_bytes(wrong))


def test_a_plan_without_its_parameters_is_refused():
    with pytest.raises(
        PolicyRefused, match="cannot tell what the declared PersonalizedPCA will ask"
    ):
        find_script(RunPlan("run", "PersonalizedPCA", {}, {"a": ""}))
