"""FAPS and LocalPower: the algorithm of the paper, its stop rule, and where it loses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from typer.testing import CliRunner

import fedpca
from fedpca import FederatedPCA, Federation
from fedpca.cli.app import app
from fedpca.engines.local import LocalEngine
from fedpca.errors import InputError
from fedpca.linalg.dense import orth, outside, procrustes, sine_of_angle
from fedpca.solvers import Faps, LocalPower
from fedpca.solvers.exact.faps import FapsState
from fedpca.solvers.exact.faps_at_site import (
    SUFFICIENT,
    Copy,
    grown,
    largest_eigenvalue,
    masked_product,
    solve_locally,
)
from fedpca.solvers.exact.local_power import local_steps_of_rounds
from support import gapped_rows


def covariances(rng, d, m):
    return [rows.T @ rows for rows in rng.standard_normal((m, 2 * d, d)) * rng.uniform(0.2, 2, d)]


def multiplier(copy):
    return copy.X @ copy.W.T + copy.W @ copy.X.T


def augmented_lagrangian(Cs, copies, Z, beta):
    """(9) and (10), with every d x d matrix formed."""
    total = 0.0
    for C, copy in zip(Cs, copies, strict=True):
        D = copy.X @ copy.X.T - Z @ Z.T
        total -= np.trace(copy.X.T @ C @ copy.X) / 2
        total += -np.vdot(multiplier(copy), D) / 2 + beta / 4 * np.linalg.norm(D) ** 2
    return total


def smallest_penalty(m, p, delta):
    """What Assumption 6 asks of beta_i / ||A||_F^2, where all penalties are equal."""
    sigma = np.sqrt(1 - 1 / (2 * m))
    assert delta < sigma / (2 * np.sqrt(m))
    return max(
        1.0,
        12 * m * np.sqrt(p) / (SUFFICIENT * sigma**2),
        4 * np.sqrt(2) * (1 + np.sqrt(2 * m)) / (sigma - 2 * np.sqrt(m) * delta),
        16 * m * np.sqrt(p),
        4 * (1 + np.sqrt(2 * m)) / (SUFFICIENT * sigma**2 * m),
    )


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(5, 12), st.integers(1, 3))
def test_augmented_lagrangian_never_rises_and_iterates_stay_feasible(seed, m, d, p):
    rng = np.random.default_rng(seed)
    Cs = covariances(rng, d, m)
    energy = sum(np.trace(C) for C in Cs)
    delta = 0.1
    beta = smallest_penalty(m, p, delta) * energy
    Z = orth(rng.standard_normal((d, p)))
    copies = [Copy.at(Z, C @ Z) for C in Cs]  # (22) holds: no distance at all
    values = [augmented_lagrangian(Cs, copies, Z, beta)]
    for _ in range(12):
        better = []
        for C, copy in zip(Cs, copies, strict=True):
            norm = np.linalg.norm(C, 2)
            new = solve_locally(C.__matmul__, copy, Z, beta, norm, steps=20)
            H = C + multiplier(copy) + beta * Z @ Z.T
            violation, left = (np.linalg.norm(outside(c.X, H @ c.X)) for c in (copy, new))
            fallen = (np.trace(new.X.T @ H @ new.X) - np.trace(copy.X.T @ H @ copy.X)) / 2
            rounding = 1e-13 * beta
            assert fallen >= SUFFICIENT / (norm + beta) * violation**2 - rounding  # (13)
            assert left <= delta * violation + rounding  # (14)
            better.append(new)
        copies = better
        Y = sum(masked_product(copy, Z, beta) for copy in copies)
        Z = orth(Y)
        values.append(augmented_lagrangian(Cs, copies, Z, beta))
        np.testing.assert_allclose(Z.T @ Z, np.eye(p), atol=1e-12)
        for copy in copies:
            np.testing.assert_allclose(copy.X.T @ copy.X, np.eye(p), atol=1e-12)
            assert copy.distance(Z) ** 2 <= 1 / m  # (31)
    assert (np.diff(values) <= 1e-13 * beta).all()
    assert values[-1] < values[0]


@given(st.integers(0, 2**32), st.integers(2, 12), st.integers(1, 4))
def test_no_large_matrix_is_needed(seed, d, p):
    rng = np.random.default_rng(seed)
    p = min(p, d)
    (C,) = covariances(rng, d, 1)
    X, Z = (orth(rng.standard_normal((d, p))) for _ in range(2))
    copy = Copy.at(X, C @ X)
    P = X @ X.T
    Lambda = -P @ C @ (np.eye(d) - P) - (np.eye(d) - P) @ C @ P  # (8)
    scale = np.linalg.norm(C)
    np.testing.assert_allclose(multiplier(copy), Lambda, atol=1e-13 * scale)
    np.testing.assert_allclose(
        masked_product(copy, Z, 3.0), (3.0 * P - Lambda) @ Z, atol=1e-13 * scale
    )
    one_step = solve_locally(C.__matmul__, copy, Z, 3.0, scale, steps=1)
    assert sine_of_angle(one_step.X, orth((C + Lambda + 3.0 * Z @ Z.T) @ X)) < 1e-7
    assert copy.distance(Z) == pytest.approx(np.linalg.norm(P - Z @ Z.T), abs=1e-12)


def test_copies_that_start_at_Z_do_not_move_in_the_first_round():
    rng = np.random.default_rng(0)
    (C,) = covariances(rng, 8, 1)
    Z = orth(rng.standard_normal((8, 2)))
    stuck = solve_locally(C.__matmul__, Copy.at(Z, C @ Z), Z, 0.1, 1.0, steps=5)
    assert sine_of_angle(stuck.X, Z) < 1e-12
    ahead = orth(C @ Z)
    moved = solve_locally(C.__matmul__, Copy.at(ahead, C @ ahead), Z, 0.1, 1.0, steps=5)
    assert sine_of_angle(moved.X, Z) > 0.1


def test_largest_eigenvalue_nearly():
    rng = np.random.default_rng(1)
    for C in covariances(rng, 30, 5):
        X = orth(C @ rng.standard_normal((30, 3)))
        found = largest_eigenvalue(C.__matmul__, Copy.at(X, C @ X))
        truth = np.linalg.norm(C, 2)
        assert 0.9 * truth <= found <= truth * (1 + 1e-12)
    assert largest_eigenvalue(np.zeros_like, Copy.at(X, 0 * X)) == 0.0


class Watched(Federation):
    """Keeps what a solver reports, and the true residual of the subspace that it reports."""

    def __init__(self, sites, rows):
        super().__init__(LocalEngine(sites))
        A = rows - rows.mean(axis=0)
        self.C, self.reports = A.T @ A, []

    def report(self, residual, subspace):
        super().report(residual, subspace)
        Z = subspace()
        R = outside(Z, self.C @ Z)
        self.reports.append((residual, np.linalg.norm(R) / np.trace(self.C)))


@pytest.mark.parametrize("unlike", [False, True])
def test_residual_of_faps_bounds_the_true_one(unlike):
    rng = np.random.default_rng(2)
    X = gapped_rows(rng, 300, 12, 3)
    if unlike:
        X = X[np.argsort(X[:, 0])]
    fed = Watched(np.array_split(X, 4), X)
    FederatedPCA(3, solver="faps", random_state=0).fit(fed)
    stated, true = np.transpose(fed.reports)
    assert (true <= stated * (1 + 1e-9)).all()
    assert stated[-1] <= 1e-10
    assert (stated[5:-1] < 100 * true[5:-1]).all()  # a bound that says something


def decaying_sites(seed, sizes, xi=1.02):
    """Rows of the paper's (23): orthonormal columns times singular values that fall by xi."""
    rng = np.random.default_rng(seed)
    V = orth(rng.uniform(-1, 1, (sum(sizes), 200)))
    return np.split(V * xi ** -np.arange(200.0), np.cumsum(sizes)[:-1])


def rounds_of(solver, sites, seed, **options):
    model = FederatedPCA(10, solver=solver, center=False, tol=1.97e-6, random_state=seed, **options)
    return model.fit(sites).run_


@pytest.mark.slow
def test_faps_takes_less_than_half_the_rounds_of_plain_iteration_on_like_sites():
    runs = {"faps": [], "subspace-iteration": [], "local-power": []}
    for seed in range(5):
        sites = decaying_sites(seed, [900] * 8)
        for solver, found in runs.items():
            found.append(rounds_of(solver, sites, seed))
    rounds = {solver: np.median([r.solver_rounds for r in found]) for solver, found in runs.items()}
    assert rounds["faps"] <= rounds["subspace-iteration"] / 2
    assert rounds["local-power"] <= rounds["subspace-iteration"] * 0.9
    assert not any(run.advice for run in runs["faps"])


@pytest.mark.parametrize("local_steps", [1, 3, 10, "decrease", "change"])
def test_local_problems_may_be_solved_in_every_named_way(local_steps):
    rng = np.random.default_rng(3)
    X = gapped_rows(rng, 120, 8, 2)
    ours = FederatedPCA(2, solver=Faps(local_steps=local_steps), random_state=0)
    ours.fit(np.array_split(X, 3))
    _, _, Vt = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    assert sine_of_angle(Vt[:2].T, ours.components_.T) < 1e-8
    assert ours.run_.stop_reason == "converged"


@pytest.mark.slow
def test_more_local_steps_cost_a_site_more_products(monkeypatch):
    from fedpca.rows.standardized import StandardizedRows

    sites = np.array_split(gapped_rows(np.random.default_rng(4), 120, 8, 2), 3)
    products = {}
    times = StandardizedRows.gram_times
    for steps in (2, 6, "decrease", "change"):
        count = []
        monkeypatch.setattr(
            StandardizedRows, "gram_times", lambda self, Z, n=count: n.append(1) or times(self, Z)
        )
        run = FederatedPCA(2, solver=Faps(local_steps=steps), random_state=0).fit(sites).run_
        products[steps] = len(count) / 3 / run.solver_rounds
    assert products[2] < 4 < 6 < products[6] < 9
    assert products["decrease"] != products["change"]


def test_objective_rule_stops_by_the_change_of_variance_explained():
    sites = decaying_sites(0, [900] * 8)
    run = rounds_of(Faps(stop="objective"), sites, 0)
    assert run.stop_reason == "converged"
    history = [entry["residual"] for entry in run.history if entry["residual"] is not None]
    assert history[0] == 1.0
    assert history[-1] <= 1.97e-6 < history[-2]
    assert run.solver_rounds < rounds_of("faps", sites, 0).solver_rounds


def unlike_sites():
    """Each site varies along a few features of its own, and a little along all."""
    rng = np.random.default_rng(5)
    sites = []
    for i in range(6):
        scale = np.full(24, 0.3)
        scale[4 * i : 4 * i + 4] = [3.0, 2.8, 2.6, 2.4]
        scale[0] += 2
        sites.append(rng.standard_normal((60, 24)) * scale)
    return sites


UNLIKE = {"random_state": 0, "max_rounds": 2000, "tol": 1e-6}


@pytest.fixture(scope="module")
def fitted_to_unlike_sites():
    """A fit by faps to unlike sites, which takes hundreds of rounds, and its engine."""
    engine = LocalEngine(unlike_sites())
    return FederatedPCA(3, solver="faps", **UNLIKE).fit(Federation(engine)), engine


@pytest.mark.slow
def test_run_says_where_sites_are_so_unlike_that_faps_loses(fitted_to_unlike_sites, tmp_path):
    ours, _ = fitted_to_unlike_sites
    plain = FederatedPCA(3, solver="subspace-iteration", **UNLIKE).fit(unlike_sites())
    assert "the sites differ so much that their penalties grew" in ours.run_.advice
    assert "'subspace-iteration' would probably take fewer" in ours.run_.advice
    assert plain.run_.solver_rounds < ours.run_.solver_rounds
    assert not plain.run_.advice
    assert sine_of_angle(plain.components_.T, ours.components_.T) < 1e-3
    ours.save(tmp_path / "m.fedpca")
    assert fedpca.load(tmp_path / "m.fedpca").run_.advice == ours.run_.advice
    shown = CliRunner().invoke(app, ["info", str(tmp_path / "m.fedpca")]).output
    assert "the sites differ so much" in shown


def test_run_says_where_the_spectrum_falls_so_fast_that_faps_loses():
    rng = np.random.default_rng(6)
    X = rng.standard_normal((600, 12)) * ([10, 9, 8] + [0.5] * 9)
    ours = FederatedPCA(3, solver="faps", random_state=0).fit(np.array_split(X, 4))
    plain = FederatedPCA(3, solver="subspace-iteration", random_state=0).fit(np.array_split(X, 4))
    words = ours.run_.advice.split()
    assert words[:2] == ["faps", "took"]
    at_most = int(words[words.index("about") + 1].rstrip(","))
    assert ours.run_.solver_rounds > at_most
    assert plain.run_.solver_rounds <= at_most
    assert "unlike" not in ours.run_.advice


def test_run_that_was_cut_short_says_what_else_to_use():
    model = FederatedPCA(3, solver="faps", max_rounds=3, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(unlike_sites())
    assert "took 3 rounds" in model.run_.advice
    assert "'lanczos'" in model.run_.advice


def test_no_advice_is_given_after_a_handful_of_rounds():
    X = np.random.default_rng(7).standard_normal((50, 4))
    assert not FederatedPCA(4, solver="faps", random_state=0).fit(X).run_.advice


def test_a_wide_gap_wants_a_larger_penalty():
    """The best one is about sqrt(g lambda_1): copies differ for long where it is smaller."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((600, 12)) * ([10] * 3 + [1] * 9)
    rounds = {
        penalty: FederatedPCA(3, solver=Faps(penalty=penalty), random_state=0)
        .fit(np.array_split(X, 4))
        .run_.solver_rounds
        for penalty in (0.15, 1.0)
    }
    assert rounds[1.0] < rounds[0.15] / 2


def test_penalty_grows_by_half_up_to_its_end_where_copies_come_no_nearer():
    assert grown(1.0, before=2.0, distance=1.0, norm=9.0) == 1.0
    assert grown(1.0, before=1.0, distance=1.0, norm=9.0) == 1.5
    assert grown(1.0, before=1.005, distance=1.0, norm=9.0) == 1.5
    assert grown(1.5, before=1.0, distance=1.0, norm=1.0) == 2.0
    assert grown(5.0, before=1.0, distance=1.0, norm=1.0) == 5.0


@pytest.mark.slow
def test_penalties_grow_where_copies_stay_away_and_never_beyond_their_end(fitted_to_unlike_sites):
    _, engine = fitted_to_unlike_sites
    states = [site.recall(FapsState) for site in engine.sites.values()]
    shares = [state.beta / state.norm for state in states]
    assert max(shares) > 0.15 * (1 + 1e-9)
    assert max(shares) <= 2.0 * (1 + 1e-9)
    held = FederatedPCA(3, solver=Faps(penalty=5.0), random_state=0, max_rounds=50)
    engine = LocalEngine(unlike_sites())
    with pytest.warns(ConvergenceWarning, match="max_rounds=50"):
        held.fit(Federation(engine))
    for site in engine.sites.values():
        state = site.recall(FapsState)
        assert state.beta == pytest.approx(5.0 * state.norm)


def test_only_masked_products_one_number_and_the_end_leave_a_site():
    engine = LocalEngine(np.array_split(gapped_rows(np.random.default_rng(6), 90, 7, 2), 3))
    run = FederatedPCA(2, solver="faps", random_state=0).fit(Federation(engine)).run_
    fields = {
        (entry.question, entry.field, entry.shape)
        for entry in run.ledger
        if entry.direction == "up" and entry.question in ("consensus_step", "energy_within")
    }
    envelope = {(q, "(envelope)", ()) for q in ("consensus_step", "energy_within")}
    assert fields - envelope == {
        ("consensus_step", "Y", (7, 2)),
        ("consensus_step", "stop_value", ()),
        ("energy_within", "norm", ()),
        ("energy_within", "within", (2, 2)),
        ("energy_within", "penalty", ()),
    }
    for site in engine.sites.values():
        assert site.recall(FapsState).X.shape == (7, 2)


def test_rank_rules_that_must_look_further_start_wider_copies():
    rng = np.random.default_rng(7)
    X = rng.standard_normal((400, 20)) * ([5] * 14 + [1] * 6)
    ours = FederatedPCA(0.9, solver="faps", random_state=0, max_rounds=3000)
    ours.fit(np.array_split(X, 3))
    widths = {entry.shape[1] for entry in ours.run_.ledger if entry.field == "Y"}
    assert len(widths) > 1
    assert ours.n_components_ == FederatedPCA(0.9, solver="covariance").fit([X]).n_components_


def test_max_rounds_ends_a_search_that_must_look_further():
    rng = np.random.default_rng(8)
    X = rng.standard_normal((400, 20)) * ([5] * 14 + [1] * 6)
    ours = FederatedPCA(0.9, solver="faps", random_state=0, max_rounds=3)
    with pytest.warns(ConvergenceWarning, match="max_rounds=3"):
        ours.fit(np.array_split(X, 3))
    assert ours.run_.solver_rounds == 3
    assert ours.run_.stop_reason == "max_rounds"


def test_one_local_power_step_is_subspace_iteration():
    sites = np.array_split(gapped_rows(np.random.default_rng(9), 90, 7, 2), 3)
    local = FederatedPCA(2, solver=LocalPower(local_steps=1), random_state=0).fit(sites)
    plain = FederatedPCA(2, solver="subspace-iteration", random_state=0).fit(sites)
    assert local.components_.tobytes() == plain.components_.tobytes()
    assert local.run_.solver_rounds == plain.run_.solver_rounds


def test_local_steps_are_halved_every_so_many_rounds():
    assert list(local_steps_of_rounds(8, 2)) == [8, 8, 4, 4, 2, 2]
    assert list(local_steps_of_rounds(5, 1)) == [5, 2]
    sites = np.array_split(np.random.default_rng(10).standard_normal((300, 12)), 3)
    solver = LocalPower(local_steps=4, halve_every=3)
    run = FederatedPCA(2, solver=solver, random_state=0, max_rounds=3000).fit(sites).run_
    asked = [entry["question"] for entry in run.history]
    assert asked.count("local_power_steps") == 6
    assert run.stop_reason == "converged"


def test_local_bases_are_turned_to_the_common_one(monkeypatch):
    """Without it bases of unlike sites cancel in the sum."""
    from fedpca.solvers.exact import local_power

    sites = decaying_sites(1, [900] * 8)
    turned = rounds_of("local-power", sites, 1).solver_rounds
    monkeypatch.setattr(local_power, "procrustes", lambda X, Z: np.eye(X.shape[1]))
    assert rounds_of("local-power", sites, 1).solver_rounds > turned


def test_local_steps_end_once_they_lead_nowhere():
    sites = np.array_split(gapped_rows(np.random.default_rng(12), 300, 8, 2), 3)
    run = FederatedPCA(2, solver=LocalPower(halve_every=1000), random_state=0).fit(sites).run_
    assert run.stop_reason == "converged"
    assert run.solver_rounds < 100


def test_decrease_asks_for_both_conditions(monkeypatch):
    from fedpca.solvers.exact import faps_at_site as faps_local

    (C,) = covariances(np.random.default_rng(13), 20, 1)
    rng = np.random.default_rng(14)
    X, Z = (orth(rng.standard_normal((20, 3))) for _ in range(2))
    products = {}
    for c_1, delta in ((0.1, 0.5), (0.1, 1e-6), (1e9, 1.0)):
        monkeypatch.setattr(faps_local, "SUFFICIENT", c_1)
        monkeypatch.setattr(faps_local, "DECREASE", delta)
        count = []
        norm = float(np.linalg.norm(C, 2))
        solve_locally(lambda V, n=count: n.append(1) or C @ V, Copy.at(X, C @ X), Z, norm, norm, 0)
        products[c_1, delta] = len(count)
    assert products[0.1, 0.5] < products[0.1, 1e-6]
    assert products[1e9, 1.0] == faps_local.MAX_LOCAL_STEPS  # (13) is never met


def test_max_rounds_counts_those_with_local_steps():
    sites = np.array_split(np.random.default_rng(11).standard_normal((300, 12)), 3)
    for max_rounds in (1, 5, 40):
        model = FederatedPCA(2, solver="local-power", max_rounds=max_rounds, tol=0, random_state=0)
        with pytest.warns(ConvergenceWarning):
            model.fit(sites)
        assert model.run_.solver_rounds == max_rounds


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_procrustes_undoes_a_rotation(seed, k):
    rng = np.random.default_rng(seed)
    Z = orth(rng.standard_normal((6, k)))
    turn = orth(rng.standard_normal((k, k)))
    D = procrustes(Z @ turn, Z)
    np.testing.assert_allclose(Z @ turn @ D, Z, atol=1e-12)
    np.testing.assert_allclose(D @ D.T, np.eye(k), atol=1e-12)


def test_options_of_other_solvers_cannot_be_written_and_bad_values_are_refused():
    with pytest.raises(TypeError, match="penalty"):
        LocalPower(penalty=2.0)
    with pytest.raises(TypeError, match="halve_every"):
        Faps(halve_every=2)
    with pytest.raises(InputError, match="local_steps='decrease' must be a whole number from 1 to"):
        LocalPower(local_steps="decrease")
    with pytest.raises(InputError, match=r"local_steps=0 must be a whole number from 1 to 1000"):
        Faps(local_steps=0)
    with pytest.raises(InputError, match=r"local_steps='\(13\)' must be"):
        Faps(local_steps="(13)")
    with pytest.raises(
        InputError, match=r"penalty=0\.0 must be a positive number no greater than 1000"
    ):
        Faps(penalty=0.0)
    with pytest.raises(InputError, match="stop='soon' must be one of 'kkt', 'objective'"):
        Faps(stop="soon")
