"""The parts of which robust fits are made."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca import Federation, RobustPCA
from fedpca.linalg.dense import orth, sine_of_angle
from fedpca.models import robust as models
from fedpca.models.robust import fitted_scores, judge, median_size, separate
from fedpca.solvers import Dcf
from fedpca.solvers.robust.at_site import begin_robust, count_present, count_values
from fedpca.solvers.robust.dcf import gradient_round
from fedpca.solvers.robust.hard import START_ROUNDS, start_clipped
from fedpca.solvers.robust.medians import as_bins, feature_medians, median_of_bins
from fedpca.solvers.robust.soft import rank_of
from support import draws, low_rank_rows


def medians_of(parts, **options):
    """Medians of each feature over sites, and the rounds that they took."""
    d = parts[0].shape[1]

    def program(fed, _):
        fed.sum(count_present, features=np.empty(0, np.uint8))
        ask = partial(fed.sum, count_values)
        return feature_medians(ask, np.arange(d), np.zeros(d), **options)

    fed = Federation.local(parts)
    return fed.run(program, identity={"program": "test"}), fed.record.rounds - 1


@draws(8)
@given(data=st.data())
def test_medians_over_sites_are_those_of_all_rows_up_to_bins_that_stay_whole(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    n, d = data.draw(st.integers(2, 60)), data.draw(st.integers(1, 5))
    X = rng.standard_cauchy((n, d)) * 10.0 ** data.draw(st.integers(-6, 6))
    X += data.draw(st.sampled_from([0.0, 0.0, -1e3, 1e8]))
    X[rng.random(X.shape) < 0.1] = data.draw(st.sampled_from([1e15, -1e36, 1e-300]))
    X[rng.random(X.shape) < 0.2] = np.nan
    X[0] = np.nan_to_num(X[0])
    of = data.draw(st.sampled_from(["values", "sizes"]))
    parts = np.array_split(X, data.draw(st.integers(1, 4)))
    found, _ = medians_of(parts, of=of)
    ordered = np.sort(np.abs(X) if of == "sizes" else X, axis=0)
    for j in range(d):
        values = ordered[: np.isfinite(X[:, j]).sum(), j]
        # sites with many values keep bins whole that hold fewer than 5 of them
        off = 4 * sum(np.isfinite(part[:, j]).sum() >= 20 for part in parts)
        low = values[max(0, (len(values) - 1) // 2 - off)]
        high = values[min(len(values) - 1, len(values) // 2 + off)]
        slack = 3e-7 * max(abs(low), abs(high))
        assert low - slack <= found[j] <= high + slack


@pytest.mark.parametrize("alike", [0.0, 1.0, -7.0, 0.1, -1e-5, 1e36])
def test_the_median_of_values_that_are_alike_is_exact(alike):
    X = np.random.default_rng(0).standard_normal((90, 1))
    X[:60] = alike
    assert medians_of(np.array_split(X, 3))[0] == alike


def test_medians_take_few_rounds_unless_an_offset_hides_the_digits():
    X = np.random.default_rng(0).standard_normal((20000, 4))
    counts = np.random.default_rng(0).integers(0, 17, (500, 4)).astype(float)
    assert medians_of([X])[1] == medians_of([1e20 * X])[1] == 6
    assert medians_of([counts])[1] <= 6
    found, rounds = medians_of([X + 1e9])
    assert np.allclose(found, np.median(X + 1e9, axis=0), atol=0.02)
    assert 6 < rounds <= 11


def test_one_number_a_site_has_its_median_to_two_percent():
    values = [1e-9, 0.1, 3.0, 4.0, 1e5]
    counts = sum(as_bins(value, 2.0, 10) for value in values)
    assert median_of_bins(counts, 2.0) == pytest.approx(3.0, rel=0.025)
    assert median_of_bins(as_bins(0.0, 2.0, 1), 2.0) == 0
    assert 0.5e-15 < median_of_bins(as_bins(1e-15, 2.0, 1), 2.0) < 2e-15
    assert median_of_bins(as_bins(1e9, 2.0, 1), 2.0) == 32  # above all bins
    assert as_bins(1.0, 2.0, 0).sum() == 0


def entered(fed, d):
    """Sites that know their rows are taken as they are."""
    fed.sum(count_present, features=np.empty(0, np.uint8))
    varies = np.ones(d, np.uint8)
    fed.sum(
        begin_robust,
        mean=np.zeros(d),
        scale=np.ones(d),
        varies=varies,
        reference=np.float64(1),
    )


def published(M, U, V, lam, rho, step, K, n):
    """Steps of Algorithm 1 at one site: M is its columns, (d, n_i), and J = 2 inner sweeps."""
    for _ in range(K):
        for _ in range(2):
            R = M - U @ V.T
            S = np.sign(R) * np.maximum(np.abs(R) - lam, 0)
            V = np.linalg.solve(U.T @ U + rho * np.eye(U.shape[1]), U.T @ (M - S)).T
        eta = step or 0.5 / (np.linalg.norm(V, 2) ** 2 + M.shape[1] / n * rho)
        U = U - eta * ((U @ V.T + S - M) @ V + M.shape[1] / n * rho * U)
    return U, V


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("step", [0.0, 1e-3])
def test_a_round_of_dcf_is_that_of_the_paper(step, K):
    X, _, _ = low_rank_rows(30, 8, r=2, size=20.0)
    parts, lam, rho = [X[:10], X[10:]], 0.7, 0.3
    U = np.random.default_rng(0).standard_normal((8, 2))

    def program(fed, _):
        entered(fed, 8)
        found = []
        for done in range(2):
            found.append(
                fed.sum(
                    gradient_round,
                    U=U if not done else found[0]["U"],
                    threshold=np.float64(lam),
                    ridge=np.float64(rho),
                    step=np.float64(step / np.sqrt(1 + done)),
                    steps=np.int64(K),
                    passes=np.int64(2),
                    n=np.int64(30),
                    is_first=np.int64(not done),
                )
            )
        return found

    found = Federation.local(parts).run(program, identity={"program": "test"})
    first = U @ np.linalg.inv(U.T @ U + rho * np.eye(2))
    ours, V = U, [np.where(np.abs(rows) > lam, 0, rows) @ first for rows in parts]
    for done, answer in enumerate(found):
        local = [
            published(rows.T, ours, v, lam, rho, step / np.sqrt(1 + done), K, 30)
            for rows, v in zip(parts, V, strict=True)
        ]
        V = [v for _, v in local]
        ours = (10 * local[0][0] + 20 * local[1][0]) / 30  # averaged by rows
        assert np.allclose(answer["U"], ours, rtol=1e-10)
        assert np.allclose(answer["VV"], sum(v.T @ v for v in V), rtol=1e-10)


@pytest.mark.filterwarnings("ignore:solver 'dcf'")
def test_a_step_of_dcf_decays_and_the_number_of_local_steps_counts(monkeypatch):
    asked = []
    plain = Federation.sum

    def watched(self, question, **arrays):
        if question is gradient_round:
            asked.append((float(arrays["step"]), int(arrays["steps"])))
        return plain(self, question, **arrays)

    monkeypatch.setattr(Federation, "sum", watched)
    X, _, _ = low_rank_rows(40, 8, r=2)
    for step in (1e-3, None):
        RobustPCA(2, solver=Dcf(step=step, local_steps=3), max_rounds=4, random_state=0).fit(X)
    expected = [(1e-3 / np.sqrt(1 + t), 3) for t in range(4)] + [(0.0, 3)] * 4
    assert np.allclose(asked, expected)


def test_the_start_is_near_the_components():
    X, L, _ = low_rank_rows()

    def program(fed, _):
        entered(fed, 200)
        return start_clipped(fed, 200, 10, 8.0)

    fed = Federation.local(np.array_split(X, 4))
    U = fed.run(program, identity={"program": "test"}, seed=0)
    assert fed.record.rounds - 2 == START_ROUNDS
    assert sine_of_angle(orth(L.T @ np.linalg.svd(L)[0][:, :10]), U) < 0.6  # a random one has 1


@pytest.mark.parametrize(
    ("values", "rank", "is_clear"),
    [
        ([9.0, 8.0, 7.0, 0.1], 3, True),  # the bound itself
        ([9.0, 8.0, 7.0, 1e-9, 1e-15], 3, True),  # what is nothing does not fall
        ([9.0, 8.0, 7.0, 0.9, 0.2], 3, True),  # a fall of five and more, whatever the others
        ([9.0, 8.5, 5.0, 4.5, 4.2], 2, True),  # one at least the square of all others
        ([9.0, 4.5, 3.0, 2.0, 1.0], 4, False),  # nearly alike: the bound
        ([0.0, 0.0], 1, True),
    ],
)
def test_a_rank_is_read_off_where_singular_values_fall_clearly(values, rank, is_clear):
    found = rank_of(np.array(values), len(values) - 1)
    assert (found.number, found.is_clear) == (rank, is_clear)


def test_where_no_rank_shows_one_direction_is_left_outside():
    assert rank_of(np.array([9.0, 4.5, 3.0, 2.0, 1.0]), 5).number == 4


def test_what_is_unknown_does_not_count_and_lost_rows_and_columns_are_drawn():
    A = np.array([[1.0, 9.0, 1.0, 1.0], [9.0, -9.0, 9.0, 1.0], [1.0, 9.0, 1.0, 0.0]])
    present = np.ones((3, 4), bool)
    present[2, 3] = False
    L = np.full((3, 4), 0.5)
    plain = judge(A - L, present, 2.0)
    assert plain.mostly_outliers.tolist() == [False, True, False]
    assert plain.pull.tolist() == [[0.5, 0, 0.5, 0.5], [2, -2, 2, 0.5], [0.5, 0, 0.5, 0]]
    assert plain.counted.tolist() == [[1, 0, 1, 1], [1, 1, 1, 1], [1, 0, 1, 0]]
    drawn = judge(A - L, present, 2.0, np.array([0.0, 3.0, 0.0, 0.0]))
    assert drawn.pull.tolist() == [[0.5, 3, 0.5, 0.5], [2, -3, 2, 0.5], [0.5, 3, 0.5, 0]]
    assert drawn.counted.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]]
    assert (drawn.inliers == plain.inliers).all()


def test_scores_of_rows_that_are_partly_known_are_those_of_least_squares():
    rng = np.random.default_rng(0)
    U = np.linalg.qr(rng.standard_normal((20, 3)))[0]
    A, present = rng.standard_normal((50, 20)), rng.random((50, 20)) < 0.5
    V = np.zeros((50, 3))
    for _ in range(30):
        V = fitted_scores(V, U, judge(A - V @ U.T, present, np.inf))
    best = [np.linalg.lstsq(U[p], a[p], rcond=None)[0] for a, p in zip(A, present, strict=True)]
    assert np.allclose(V, best, rtol=1e-10)
    whole = fitted_scores(np.zeros((50, 3)), U, judge(A, np.full_like(present, True), np.inf))
    assert np.allclose(whole, A @ U, rtol=1e-12)  # in one step


def noisy_rows(n, d, r, seed=0):
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((d, r)))[0]
    A = 10 * rng.standard_normal((n, r)) @ U.T + 0.1 * rng.standard_normal((n, d))
    A[rng.random((n, d)) < 0.05] += 20
    present = rng.random((n, d)) < 0.8
    return np.where(present, A, 0.0), present, U


def test_rows_are_split_the_same_way_from_nearby_scores():
    A, present, U = noisy_rows(200, 30, 3)
    scores, sparse = separate(A, present, U, 0.4, first=20.0)
    again, also_sparse = separate(A, present, U, 0.4, V=scores + 1e-3)
    assert np.allclose(again, scores, rtol=0, atol=1e-9)
    assert np.allclose(also_sparse, sparse, rtol=0, atol=1e-9)


def test_entries_do_not_go_in_and_out_forever(monkeypatch):
    passes = []

    def counted(V, *rest):
        passes.append(len(V))
        return fitted_scores(V, *rest)

    monkeypatch.setattr(models, "fitted_scores", counted)
    A, present, U = noisy_rows(2000, 30, 3)
    separate(A, present, U, 0.27, first=20.0)
    assert len(passes) < models.MAX_PASSES


@pytest.mark.parametrize("n", [0, 1, 2, 501, 5000])
def test_the_median_size_is_that_of_sorted_values(n):
    rng = np.random.default_rng(n)
    for factors in (1.0, 10.0 ** rng.integers(-300, 70, n), rng.random(n) < 0.4):
        sizes = np.abs(rng.standard_normal(n)) * factors
        assert median_size(sizes) == (np.sort(sizes)[n // 2] if n else 0.0)


def test_a_row_without_values_does_not_count_in_a_table_without_other_gaps():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 6))
    gap = np.insert(X, 7, np.nan, axis=0)
    plain, other = (RobustPCA(2, random_state=0).fit([rows[:20], rows[20:]]) for rows in (X, gap))
    assert other.n_samples_ == 40
    assert np.isfinite(other.components_).all()
    assert np.allclose(plain.explained_variance_, other.explained_variance_)
