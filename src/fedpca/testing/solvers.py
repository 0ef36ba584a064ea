"""Check the guarantees that every `FederatedPCA` solver must provide."""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from fedpca.arrays import Array
from fedpca.coordinator.federation import Federation
from fedpca.errors import FedpcaError, PolicyRefused
from fedpca.estimators import FederatedPCA
from fedpca.linalg.dense import sine_of_angle
from fedpca.protocol.message import Message, compose
from fedpca.protocol.script import FEDERATED
from fedpca.site.policy import Policy
from fedpca.site.site import Site
from fedpca.solvers.catalogue import AUTO, SOLVERS, find_solver, from_plain, to_plain
from fedpca.solvers.contract import Solver
from fedpca.testing.scripted import Reply, ScriptedEngine

N_COMPONENTS = 3
MAX_CHECK_ROUNDS = 5000
SUBSPACE_TOL = 1e-7  # sine of the largest angle to the pooled components
MANY_TIMES = 1000  # more often than any solver asks a question within two rounds
SET_ONCE = ("column_names", "count_and_sum", "squares", "standardize")
USUAL_SEEN = {"column_names", "explained_energy"}  # gathered by the program that calls the solver


def check_solver(solver: Solver) -> None:
    """Check a solver, and raise an AssertionError that describes the first guarantee it breaks.

    The check runs the solver on small generated data, so it takes only seconds.
    """
    _check_value(solver)
    for name, sites in _partitions():
        _check_equals_pooled(solver, name, sites)
    sites = dict(_partitions())["unlike sites"]
    _check_weights_and_gaps(solver, sites)
    _check_order_of_sites(solver, sites)
    _check_bits(solver, sites)
    _check_disclosure(solver, sites)
    _check_resumes(solver, sites)
    _check_no_false_convergence(solver, sites)
    with _installed(solver):
        _check_script_admits(solver, sites)
        _check_script_refuses(solver, sites)


def _check_value(solver: Solver) -> None:
    """Check that a solver is a plain value, which can be compared, copied, pickled, and restored."""
    _require(
        isinstance(solver, Solver), f"{solver!r} does not implement all of fedpca.solvers.Solver"
    )
    _require(find_solver(solver) is solver, f"FederatedPCA does not accept {solver!r}")
    _require(
        solver.guarantee in ("exact", "bounded"),
        f"guarantee={solver.guarantee!r} must be 'exact' or 'bounded'",
    )
    _require(
        pickle.loads(pickle.dumps(solver)) == solver, "a pickled solver differs from the original"
    )
    plain = to_plain(solver)
    _require(
        from_plain(plain, {solver.name: solver}) == solver, f"{plain} restores a different solver"
    )
    estimator = FederatedPCA(2, solver=solver)
    _require(
        clone(estimator).get_params()["solver"] == solver,
        "a cloned solver differs from the original",
    )
    try:
        solver.name = solver.name  # type: ignore[misc]
    except AttributeError:
        return
    raise AssertionError("a solver must be a frozen dataclass, so that its options cannot change")


def _partitions() -> Iterator[tuple[str, dict[str, Array]]]:
    rng = np.random.default_rng(0)
    deviations = np.r_[4.0, 3.0, 2.0, np.linspace(0.6, 0.3, 7)]
    basis = np.linalg.qr(rng.standard_normal((10, 10)))[0]
    X = rng.standard_normal((120, 10)) * deviations @ basis
    yield "alike sites", _named(np.array_split(X, 3))
    yield "one site", _named([X])
    yield "unlike sites", _named(np.split(X[np.argsort(X[:, 0])], [15, 60]))
    yield "an empty site and a single row", _named(np.split(X, [0, 1, 70]))
    yield "an offset of 1e6", _named(np.array_split(X + 1e6, 3))
    wide = rng.standard_normal((12, 40)) * np.r_[9.0, 7.0, 5.0, np.full(37, 0.2)]
    yield "more features than rows", _named(np.array_split(wide, 3))


def _named(parts: list[Array]) -> dict[str, Array]:
    return {f"site-{i}": part for i, part in enumerate(parts, start=1)}


def _fit(solver: Solver, sites: Any, **parameters: Any) -> FederatedPCA:
    usual = {"random_state": 0, "max_rounds": MAX_CHECK_ROUNDS}
    return FederatedPCA(N_COMPONENTS, solver=solver, **{**usual, **parameters}).fit(sites)


def _angle(model: FederatedPCA, sites: dict[str, Array]) -> float:
    pooled = PCA(N_COMPONENTS, svd_solver="full").fit(np.vstack(list(sites.values())))
    return sine_of_angle(pooled.components_.T, model.components_.T)


def _check_equals_pooled(solver: Solver, name: str, sites: dict[str, Array]) -> None:
    model = _fit(solver, sites)
    angle, bound = _angle(model, sites), 0.0
    if solver.guarantee == "bounded":
        bound = model.run_.angle_bound
    _require(
        angle <= max(SUBSPACE_TOL, bound),
        f"{name}: the sine of the angle to the pooled components is {angle:.1e}, but must be at most "
        f"{max(SUBSPACE_TOL, bound):.1e}",
    )
    basis = model.components_
    _require(
        bool(np.allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-10)),
        f"{name}: the components are not orthonormal",
    )


def _check_weights_and_gaps(solver: Solver, sites: dict[str, Array]) -> None:
    rng = np.random.default_rng(1)
    gaps = {name: rng.random(rows.shape) < 0.02 for name, rows in sites.items()}
    holey = {name: np.where(gaps[name], np.nan, rows) for name, rows in sites.items()}
    counts = {name: rng.integers(0, 4, len(rows)) for name, rows in sites.items()}
    model = FederatedPCA(
        N_COMPONENTS, solver=solver, missing="mean", random_state=0, max_rounds=MAX_CHECK_ROUNDS
    ).fit(holey, sample_weight=counts)
    complete = {
        name: np.repeat(np.where(gaps[name], model.mean_, rows), counts[name], axis=0)
        for name, rows in sites.items()
    }
    angle = _angle(model, complete)
    bound = model.run_.angle_bound if solver.guarantee == "bounded" else 0.0
    _require(
        angle <= max(SUBSPACE_TOL, bound),
        "with weights and filled gaps, the sine of the angle to the pooled components is "
        f"{angle:.1e}; read rows through site.standardized, which handles both",
    )


def _check_order_of_sites(solver: Solver, sites: dict[str, Array]) -> None:
    there, back = _fit(solver, sites), _fit(solver, dict(reversed(sites.items())))
    angle = sine_of_angle(there.components_.T, back.components_.T)
    bound = there.run_.angle_bound + back.run_.angle_bound
    _require(
        angle <= max(SUBSPACE_TOL, bound),
        f"the order of the sites changes the components by an angle with sine {angle:.1e}",
    )


def _check_bits(solver: Solver, sites: dict[str, Array]) -> None:
    engine = ScriptedEngine(sites)
    first, second = _fit(solver, sites), _fit(solver, Federation(engine))
    _require(
        first.components_.tobytes() == second.components_.tobytes(),
        "the same seed gives a different result over an engine that encodes its messages",
    )
    counted = (second.run_.ledger.bytes_down, second.run_.ledger.bytes_up)
    _require(
        counted == (engine.bytes_down, engine.bytes_up),
        f"the ledger counts {counted} bytes down and up instead of "
        f"{(engine.bytes_down, engine.bytes_up)}",
    )


def _check_disclosure(solver: Solver, sites: dict[str, Array]) -> None:
    run = _fit(solver, sites).run_
    seen = {entry.question for entry in run.ledger if entry.how == "seen"} - USUAL_SEEN
    _require(
        seen <= {*solver.seen},
        f"the coordinator sees individual answers to {sorted(seen - {*solver.seen})}; list these "
        "questions in `seen`, or sum the answers",
    )


class _Crash(BaseException):
    """An exception that no handler catches, which simulates a killed process."""


def _check_resumes(solver: Solver, sites: dict[str, Array]) -> None:
    whole = _fit(solver, sites)
    for at in {2, whole.run_.rounds // 2 + 1, whole.run_.rounds}:

        def crash(reply: Any, at: int = at) -> Any:
            if reply.round == at and reply.site == "site-2":
                raise _Crash
            return reply.answer

        with tempfile.TemporaryDirectory() as folder:
            journal = Path(folder) / "journal"
            try:
                engine = ScriptedEngine(sites, crash, journal=journal)
                _fit(solver, Federation(engine, journal=journal))
            except _Crash:
                pass
            resumed = _fit(solver, Federation.local(sites, journal=journal))
        _require(
            resumed.components_.tobytes() == whole.components_.tobytes(),
            f"a run that crashed in round {at} and was resumed gives a different result",
        )


def _check_no_false_convergence(solver: Solver, sites: dict[str, Array]) -> None:
    for max_rounds in (1, 2, 4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            try:
                model = _fit(solver, sites, max_rounds=max_rounds)
            except FedpcaError:
                continue  # an error does not claim convergence
        if model.run_.stop_reason in ("exact", "converged"):
            angle = _angle(model, sites)
            _require(
                angle <= SUBSPACE_TOL,
                f"with max_rounds={max_rounds}, the solver reports {model.run_.stop_reason!r}, but the "
                f"sine of the angle to the pooled components is {angle:.1e}",
            )


@contextmanager
def _installed(solver: Solver) -> Iterator[None]:
    """Let sites find the solver by its name, as if its package were installed."""
    is_new = solver.name not in SOLVERS
    SOLVERS.setdefault(solver.name, solver)
    try:
        yield
    finally:
        if is_new:
            del SOLVERS[solver.name]


def _guarded(solver: Solver, sites: dict[str, Array]) -> list[Site]:
    """Return sites that answer only the questions that the solver's script admits."""
    policy = Policy(allow=(FEDERATED, AUTO, solver.name), gather=True, min_rows_per_direction=0)
    return [Site(rows, name=name, policy=policy) for name, rows in sites.items()]


def _check_script_admits(solver: Solver, sites: dict[str, Array]) -> None:
    """Check that sites with the solver's script answer every question of an honest run."""
    runs: list[dict[str, Any]] = [{"n_components": k} for k in (N_COMPONENTS, 0.9, "auto", None)]
    runs += [{"scale": True}, {"center": False}, {"missing": "mean"}, {"max_rounds": 1}]
    for given in runs:
        parameters = {"n_components": N_COMPONENTS, "random_state": 0, "max_rounds": 100, **given}
        results = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for where in (sites, _guarded(solver, sites)):
                try:
                    results.append(FederatedPCA(solver=solver, **parameters).fit(where).components_)
                except PolicyRefused as error:
                    raise AssertionError(
                        f"with {given}, a site that follows the solver's script refuses an honest run: "
                        f"{error}"
                    ) from None
        _require(
            results[0].tobytes() == results[1].tobytes(),
            f"with {given}, sites that follow the solver's script give a different result",
        )


def _check_script_refuses(solver: Solver, sites: dict[str, Array]) -> None:
    """Check that the script admits no question too early, too late, or without end."""
    requests: list[Message] = []

    def keep(reply: Reply) -> Any:
        if reply.site == "site-1":
            requests.append(reply.request)
        return reply.answer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = ScriptedEngine(_guarded(solver, sites), keep)
        _fit(solver, Federation(engine), max_rounds=2)
    plan, first, *others = requests
    site = _guarded(solver, sites)[0]
    site.answer(plan)
    for request in others:
        _require_refused(site, request, 1, "before the column names")
    for request in (first, *others):
        if request.header["question"] == others[-1].header["question"]:
            break
        site.answer(request)
        if request.header["question"] in SET_ONCE:
            _require_refused(site, request, request.header["round"] + 1, "twice")
    names = [request.header["question"] for request in others[:-1]]
    looping = others[names.index(max(names, key=names.count))]
    number = site.conversation.run.round
    for _ in range(MANY_TIMES):
        number += 1
        if "error" in site.answer(_renumbered(looping, number)).header:
            break
    else:
        raise AssertionError(
            f"the script admits {looping.header['question']!r} without end; bound it with `most`"
        )
    site.answer(_renumbered(others[-1], number))
    for request in (first, *others):
        _require_refused(site, request, number + 1, "after the last question")


def _renumbered(request: Message, number: int) -> Message:
    return compose({**request.header, "round": number}, request.arrays)


def _require_refused(site: Site, request: Message, number: int, when: str) -> None:
    answer = site.answer(_renumbered(request, number))
    _require("error" in answer.header, f"the script admits {request.header['question']!r} {when}")


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise AssertionError(text)
