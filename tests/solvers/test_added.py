"""A solver that an installed package adds is found, asked for at sites, and held to the policy."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

from fedpca import FederatedPCA, Federation, Policy, Site, load, plan
from fedpca.errors import InputError, PolicyRefused
from fedpca.linalg.dense import sine_of_angle
from fedpca.solvers import SOLVERS, catalogue
from fedpca.testing import check_solver
from processes import Processes, install_example_solver
from support import fitted_quietly, gapped_rows

RNG = np.random.default_rng(0)
SITES = {name: gapped_rows(RNG, 60, 7, 3, offset=i) for i, name in enumerate(("north", "south"))}


@pytest.fixture
def momentum(monkeypatch):
    """The example package, as an installation would make it known."""
    source = Path(__file__).parents[2] / "examples" / "solver_package" / "src"
    monkeypatch.syspath_prepend(source)
    point = EntryPoint("momentum", "fedpca_momentum:Momentum", catalogue.ENTRY_POINTS)
    offer(monkeypatch, point)
    return sys.modules[type(catalogue.find_solver("momentum")).__module__].Momentum


def offer(monkeypatch, *points):
    monkeypatch.setattr(catalogue, "entry_points", lambda group: list(points))


@pytest.mark.slow
def test_an_added_solver_keeps_the_promises_of_every_solver(momentum):
    check_solver(momentum())
    check_solver(momentum(following=0.9))


def test_an_added_solver_is_taken_by_name_and_by_value(momentum, tmp_path):
    by_name = FederatedPCA(3, solver="momentum", random_state=0).fit(SITES)
    by_value = FederatedPCA(3, solver=momentum(), random_state=0).fit(SITES)
    exact = FederatedPCA(3, solver="covariance").fit(SITES)
    assert by_name.run_.solver == "momentum"
    assert by_name.components_.tobytes() == by_value.components_.tobytes()
    assert sine_of_angle(exact.components_.T, by_name.components_.T) < 1e-8
    by_value.save(tmp_path / "m")
    assert load(tmp_path / "m").solver == momentum()
    assert clone(by_value).solver == momentum()


def test_an_added_solver_is_planned_like_any_other(momentum):
    sites = Federation.local(SITES)
    run = fitted_quietly(FederatedPCA(3, solver=momentum(), max_rounds=4), sites).run_
    sizes = {name: len(rows) for name, rows in SITES.items()}
    options = {"solvers": ["momentum"], "max_rounds": 4, "flops": 1e10, "read_rate": 1e9}
    planned = plan(sizes, 7, 3, **options)["momentum"]
    assert planned.is_counted
    assert (planned.bytes_up, planned.bytes_down) == (run.bytes_up, run.bytes_down)


def test_a_solver_of_another_package_is_refused_unless_the_policy_allows_it(momentum):
    def fit(*allowed):
        policy = Policy(allow=allowed) if allowed else Policy()
        sites = [Site(rows, name=name, policy=policy) for name, rows in SITES.items()]
        return FederatedPCA(3, solver="momentum", random_state=0).fit(Federation.local(sites))

    for others in ((), ("federated", "robust")):
        with pytest.raises(PolicyRefused, match="the policy does not allow 'momentum'"):
            fit(*others)
    listed = fit("federated", "momentum")
    for others in (("momentum",), ("any",)):
        assert fit(*others).components_.tobytes() == listed.components_.tobytes()


def test_a_solver_that_is_not_installed_at_the_sites_is_refused(momentum, monkeypatch):
    given = momentum()
    offer(monkeypatch)
    policy = Policy(allow=("federated", "momentum"))
    sites = [Site(rows, name=name, policy=policy) for name, rows in SITES.items()]
    with pytest.raises(PolicyRefused, match="unknown solver 'momentum'"):
        FederatedPCA(3, solver=given).fit(Federation.local(sites))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("faps", "fedpca.solvers:Faps", "has the same name as"),
        ("broken", "no_such_package:Solver", "cannot be loaded: ModuleNotFoundError"),
        ("list", "builtins:list", "is not a solver, because it lacks name, .*script, solve;"),
    ],
)
def test_a_package_that_adds_no_solver_is_named(monkeypatch, name, value, text):
    offer(monkeypatch, EntryPoint(name, value, catalogue.ENTRY_POINTS))
    problem = catalogue.load_added_solvers()[name]
    assert isinstance(problem, InputError)
    assert re.search(text, str(problem))
    assert FederatedPCA(2, solver="covariance").fit(SITES).n_components_ == 2  # needs none of it
    if name not in SOLVERS:
        with pytest.raises(InputError, match=text):
            FederatedPCA(2, solver=name).fit(SITES)


def test_an_unknown_name_lists_what_there_is(monkeypatch):
    offer(monkeypatch, EntryPoint("mine", "builtins:list", catalogue.ENTRY_POINTS))
    with pytest.raises(
        InputError, match=r"unknown solver 'magic'; use one of auto, covariance, .*, mine"
    ):
        FederatedPCA(2, solver="magic").fit(SITES)
    with pytest.raises(ValueError, match="solver"):
        FederatedPCA(2, solver=3).fit(SITES)
    with pytest.raises(ValueError, match="solver"):
        FederatedPCA(2, solver=catalogue.Faps).fit(SITES)  # a class, and not a value of it


@pytest.mark.process
def test_an_installed_solver_fits_across_processes(tmp_path):
    for name, rows in SITES.items():
        np.save(tmp_path / f"{name}.npy", rows)
    (tmp_path / "policy.toml").write_text('allow = ["federated", "momentum"]\nend = true\n')
    processes = Processes(tmp_path, SITES)
    installed = str(install_example_solver(tmp_path / "installed"))
    paths = [installed, processes.environment.get("PYTHONPATH", "")]
    processes.environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    strict = processes.join("north", "north.npy")
    processes.join("south", "south.npy", "--policy", "policy.toml")
    asked = ("fit", "--federation", processes.address, "--sites", "2", "-k", "3", "--seed", "0")
    asked += ("--credentials", "tls", "--solver", "momentum", "-o", "m", "--force")
    refused = processes.run_apart(*asked, check=False)
    assert refused.returncode == 1
    assert "the policy does not allow 'momentum', only federated" in refused.stderr
    processes.stop(strict)
    processes.join("north", "north.npy", "--policy", "policy.toml")
    processes.run_apart(*asked, "--option", "following=0.6")
    code = (
        "import sys, numpy as np; from fedpca import load, FederatedPCA;"
        "m = load('m'); sites = {n: np.load(n + '.npy') for n in ('north', 'south')};"
        "here = FederatedPCA(3, solver=m.solver, random_state=0).fit(sites);"
        "print(m.run_.solver, m.solver.following, np.array_equal(m.components_, here.components_))"
    )
    shown = processes.run_python("-c", code)
    assert shown.stdout.split() == ["momentum", "0.6", "True"]
    processes.stop_all()
