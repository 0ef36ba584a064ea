"""A solver is a value: it is copied, compared, saved and searched over like any parameter."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from fedpca import FederatedPCA, Federation, PersonalizedPCA, RobustPCA, load
from fedpca.errors import InputError, JournalError
from fedpca.solvers import Average, Dcf, Faps, Lanczos, LocalPower, Merge, Stiefel, Threshold
from fedpca.solvers.catalogue import PERSONALIZED, ROBUST, SOLVERS, from_plain, to_plain
from support import gapped_rows

RNG = np.random.default_rng(0)
SITES = dict(zip("abc", np.array_split(gapped_rows(RNG, 90, 6, 2), 3), strict=True))
VALUES = [
    Faps(local_steps="change", penalty=0.3),
    LocalPower(local_steps=np.int64(4)),
    Lanczos(block=3),
    Merge(fan_in=2, site_components=0.9),
    Average(weights="unweighted"),
]


@pytest.mark.parametrize("solver", VALUES, ids=lambda solver: solver.name)
def test_options_survive_every_way_of_copying(solver, tmp_path):
    model = FederatedPCA(2, solver=solver, random_state=0, max_rounds=3000).fit(SITES)
    assert clone(model).solver == solver
    assert pickle.loads(pickle.dumps(model)).solver == solver
    model.save(tmp_path / "m")
    back = load(tmp_path / "m")
    assert back.solver == solver
    assert back.components_.tobytes() == model.components_.tobytes()
    assert FederatedPCA().set_params(solver=solver).solver is solver


@pytest.mark.parametrize("catalogue", [SOLVERS, PERSONALIZED, ROBUST])
def test_every_value_of_the_catalogue_has_a_plain_form(catalogue):
    for name, solver in catalogue.items():
        assert from_plain(to_plain(solver), catalogue) == solver
        assert to_plain(name) == from_plain(name, catalogue) == name
        assert solver == type(solver)()


def test_a_name_and_the_value_of_its_defaults_are_one_run(tmp_path):
    journal = tmp_path / "j"
    by_name = FederatedPCA(2, solver="faps", random_state=0)
    by_name.fit(Federation.local(SITES, journal=journal))
    by_value = FederatedPCA(2, solver=Faps(), random_state=0)
    by_value.fit(Federation.local(SITES, journal=journal))
    assert by_value.components_.tobytes() == by_name.components_.tobytes()
    other = FederatedPCA(2, solver=Faps(penalty=0.5), random_state=0)
    with pytest.raises(JournalError, match="penalty"):
        other.fit(Federation.local(SITES, journal=journal))


def test_solvers_are_searched_over_like_any_parameter():
    X = np.vstack(list(SITES.values()))
    grid = {"solver": ["covariance", Lanczos(), Lanczos(block=4)]}
    search = GridSearchCV(FederatedPCA(2, random_state=0), grid, cv=2).fit(X)
    assert search.best_params_["solver"] in grid["solver"]


@pytest.mark.filterwarnings("ignore:misalignment_")
def test_methods_of_the_other_estimators_are_values_too(tmp_path):
    personal = PersonalizedPCA(1, 1, solver=Stiefel(retraction="qr"), max_rounds=5)
    with pytest.warns(ConvergenceWarning, match="max_rounds=5"):
        personal.fit(SITES)
    personal.save(tmp_path / "p")
    assert load(tmp_path / "p").solver == Stiefel(retraction="qr")
    robust = RobustPCA(2, solver=Dcf(local_steps=3), max_rounds=5, random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_rounds=5"):
        robust.fit(SITES)
    robust.save(tmp_path / "r")
    assert load(tmp_path / "r").solver == Dcf(local_steps=3)
    assert clone(robust).solver == Dcf(local_steps=3)


@pytest.mark.parametrize(
    ("estimator", "method"),
    [
        (PersonalizedPCA(1, 1), Faps()),
        (PersonalizedPCA(1, 1), "faps"),
        (RobustPCA(2), Stiefel()),
        (RobustPCA(2), "power"),
        (FederatedPCA(2), Threshold()),
    ],
)
def test_a_solver_of_another_estimator_is_refused(estimator, method):
    name = "solver" if isinstance(estimator, FederatedPCA) else "method"
    with pytest.raises((InputError, ValueError), match=name):
        estimator.set_params(**{name: method}).fit(SITES)
