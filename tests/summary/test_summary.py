"""The mergeable summary: its laws, its bound, its two ways of appending rows, its file."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA, IncrementalPCA

from fedpca import Summary
from fedpca.errors import FedpcaError, FileError, InputError
from fedpca.linalg.dense import complete_basis, sine_of_angle
from fedpca.rows.centering import Centered
from fedpca.summary import lowrank
from fedpca.summary.lowrank import LowRank
from fedpca.summary.scatter import Scatter, scatter_pays
from fedpca.summary.summary import merge_in_tree
from support import contents_of, gapped_rows, write_contents

OFFSETS = [0.0, 3.0, -1e4, 1e8]


@st.composite
def parted_rows(draw):
    """Rows with a gap, far from the origin or not, in parts some of which are empty or one row."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    d = draw(st.integers(2, 30))
    n = draw(st.integers(3, 80))
    k = draw(st.integers(1, min(4, d, n - 1)))
    X = gapped_rows(rng, n, d, k, draw(st.sampled_from(OFFSETS)), 10.0 ** draw(st.integers(-5, 5)))
    if draw(st.booleans()):
        X = X[np.argsort(X[:, 0])]
    cuts = np.sort(rng.integers(0, n + 1, draw(st.integers(0, 7))))
    return X, np.split(X, cuts), k


def assert_same(a: Summary, b: Summary, rtol: float = 1e-12) -> None:
    """Two summaries say the same, their directions up to sign and rotation."""
    assert a.n == pytest.approx(b.n, rel=1e-14)
    spread = np.sqrt(max(b.energy, 1e-300))
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-15, atol=1e-13 * spread)
    np.testing.assert_allclose(a.squares, b.squares, rtol=rtol, atol=rtol * b.energy)
    k = max(len(a.singular_values), len(b.singular_values))
    values = [np.pad(s.singular_values, (0, k - len(s.singular_values))) for s in (a, b)]
    np.testing.assert_allclose(*values, rtol=0, atol=rtol * values[1].max(initial=1e-300))
    scatters = [s.known.rows().T @ s.known.rows() for s in (a, b)]
    np.testing.assert_allclose(*scatters, rtol=0, atol=rtol * max(b.energy, 1e-300))


def whole(X) -> Summary:
    """The summary of rows with room for every direction."""
    return Summary.of(X)


@given(parted_rows())
def test_merging_without_truncation_gives_the_summary_of_the_pooled_rows(problem):
    X, parts, _ = problem
    pooled = PCA(svd_solver="full").fit(X)
    merged = merge_in_tree([whole(part) for part in parts])
    found = merged.singular_values
    due = pooled.singular_values_[: len(found)]
    np.testing.assert_allclose(found, due, rtol=0, atol=1e-12 * due.max())
    assert merged.n == len(X)
    assert merged.known.missing == 0
    assert merged.angle_bound() == 0.0  # all directions are wanted
    np.testing.assert_allclose(
        merged.squares, len(X) * X.var(axis=0), rtol=1e-10, atol=1e-12 * merged.energy
    )


@given(parted_rows())
def test_merging_with_nothing_changes_nothing(problem):
    X, _, k = problem
    summary = Summary.of(X, k, n_spare=1)
    nothing = Summary.of(X[:0], k, n_spare=1)
    assert_same(summary.merge(nothing), summary)
    assert_same(nothing.merge(summary), summary)
    assert_same(summary.update(X[:0], forgetting=0.5), summary)
    assert nothing.merge(nothing).n == 0


@given(parted_rows(), st.integers(2, 5))
def test_order_grouping_and_fan_in_do_not_matter_where_nothing_is_truncated(problem, fan_in):
    _, parts, _ = problem
    summaries = [whole(part) for part in parts]
    at_once = merge_in_tree(summaries)
    assert_same(merge_in_tree(summaries[::-1]), at_once)
    assert_same(merge_in_tree(summaries, fan_in), at_once)
    one_by_one = summaries[0]
    for summary in summaries[1:]:
        one_by_one = one_by_one.merge(summary)
    assert_same(one_by_one, at_once)


@given(parted_rows())
def test_updating_block_by_block_equals_all_rows_at_once_where_nothing_is_truncated(problem):
    X, parts, _ = problem
    stream = Summary.empty(X.shape[1])
    for part in parts:
        stream = stream.update(part)
    assert_same(stream, whole(X))


@given(parted_rows(), st.integers(0, 3), st.sampled_from([None, 2, 3]))
def test_truncated_summaries_stay_within_the_bound_that_they_state(problem, n_spare, fan_in):
    X, parts, k = problem
    merged = merge_in_tree([Summary.of(part, k, n_spare=n_spare) for part in parts], fan_in)
    centered = X - X.mean(axis=0)
    values, V = np.linalg.eigh(centered.T @ centered)
    values, V = np.maximum(values[::-1], 0), V[:, ::-1]
    rounding = 1e-12 * values.sum()
    assert merged.energy == pytest.approx(values.sum(), rel=1e-10)
    found = np.zeros(X.shape[1])
    found[: len(merged.eigenvalues)] = merged.eigenvalues
    assert (found <= values + rounding).all()
    assert (values <= found + merged.known.dropped + rounding).all()
    U = complete_basis(merged.directions[:k].T, k)
    if values[k - 1] - (values[k] if k < len(values) else 0) > 1e-3 * values.sum():
        assert sine_of_angle(V[:, :k], U) <= merged.angle_bound(k) + 1e-8
    best, ours = values[:k].sum(), np.linalg.norm(centered @ U) ** 2
    assert best - ours <= merged.variance_bound(k) * values.sum() + rounding


def test_the_bound_says_something_and_is_not_far_from_the_truth():
    rng = np.random.default_rng(0)
    X = gapped_rows(rng, 4000, 200, 5)
    summary = Summary.empty(200, 5, n_spare=5)
    for part in np.array_split(X, 10):
        summary = summary.update(part)
    pooled = PCA(5, svd_solver="full").fit(X)
    angle = sine_of_angle(pooled.components_.T, summary.directions[:5].T)
    assert 0 < angle <= summary.angle_bound() < 0.8
    assert summary.angle_bound(4) > summary.angle_bound(5)  # no gap behind the fourth


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 1), st.floats(0.3, 1.0))
def test_the_bound_holds_for_streams_that_carry_no_more_than_they_report(seed, k, n_spare, forget):
    rng = np.random.default_rng(seed)
    blocks = [
        rng.standard_normal((n, 5)) * rng.permutation([3, 2, 1, 0.5, 0.2]) for n in (30, 200, 9)
    ]
    summary = Summary.empty(5, k, n_spare=n_spare)
    weights = []
    for block in blocks:
        summary = summary.update(block, forgetting=forget)
        weights = [*(forget**2 * w for w in weights), *([1.0] * len(block))]
    X, w = np.vstack(blocks), np.array(weights)
    centered = (X - w @ X / w.sum()) * np.sqrt(w)[:, None]
    values, V = np.linalg.eigh(centered.T @ centered)
    for j in range(1, len(summary.singular_values) + 1):
        angle = sine_of_angle(V[:, ::-1][:, :j], summary.directions[:j].T)
        assert angle <= summary.angle_bound(j) + 1e-9
        best, ours = (
            values[::-1][:j].sum(),
            np.linalg.norm(centered @ summary.directions[:j].T) ** 2,
        )
        assert best - ours <= (summary.variance_bound(j) + 1e-12) * values.sum()


def test_the_bound_knows_of_directions_that_are_not_carried_and_of_rounding():
    rng = np.random.default_rng(0)
    few = Summary.of(rng.standard_normal((200, 20)) * np.linspace(3, 1, 20), 2, n_spare=0)
    assert few.angle_bound(2) < 1e-10
    assert few.angle_bound(5) == 1  # three of which nothing is known
    assert few.variance_bound(5) > 0
    assert few.angle_bound(20) == 0  # all there are
    for k in (0, -1, 21):
        with pytest.raises(
            InputError, match=f"k={k} must be between 1 and 20, the number of features"
        ):
            few.angle_bound(k)
    unlike = Summary.of(rng.standard_normal((99, 4)) * [1e8, 1, 0.9, 0.1], 2)
    assert unlike.angle_bound(1) < 1e-10
    assert unlike.angle_bound(2) == 1  # below the rounding of the first
    lost = Summary.empty(30, 3, n_spare=2, center=False)
    X = rng.standard_normal((600, 30)) * np.linspace(1.2, 1, 30) + 1e8
    for part in np.array_split(X, 6):
        lost = lost.update(part)
    assert lost.angle_bound(3) == 1  # what the offset hides is not nothing


@pytest.mark.parametrize("scale", [1e-150, 1e-75, 1e75, 1e150])
@pytest.mark.parametrize("d", [30, 1800])
def test_rows_of_any_size_give_the_same_directions(scale, d):
    X = np.random.default_rng(1).standard_normal((80, d)) * 0.5 ** np.minimum(np.arange(d), 60)
    plain, scaled = Summary.of(X, 10), Summary.of(scale * X, 10)
    assert sine_of_angle(plain.directions[:8].T, scaled.directions[:8].T) < 1e-9
    due = scale * plain.singular_values[:8]
    np.testing.assert_allclose(scaled.singular_values[:8], due, rtol=1e-9)


def test_an_empty_summary_leaves_the_bound_of_the_other():
    rng = np.random.default_rng(2)
    some = Summary.of(rng.standard_normal((50, 6)) * [3, 2, 1, 1, 1, 1], 2, n_spare=0)
    nothing = Summary.empty(6, 2, n_spare=0)
    assert (
        nothing.merge(some).angle_bound() == some.angle_bound() == some.merge(nothing).angle_bound()
    )


def test_a_site_without_variance_does_not_ask_for_components():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((500, 30)) * np.r_[9, 8, np.ones(28)]
    for poor in (X[:1], X[:0], np.ones((4, 30))):
        assert Summary.of(poor, "mp").n_components == 1
        assert Summary.of(X, "mp").merge(Summary.of(poor, "mp")).n_components == 2


def test_numpy_scalars_are_saved(tmp_path):
    X = np.eye(5)
    summary = Summary.of(X, np.int64(2), n_spare=np.int64(1), center=np.bool_(True))
    summary.truncate(np.int64(2)).save(tmp_path / "a")
    assert Summary.load(tmp_path / "a").room == 2


@pytest.mark.parametrize("bad", ["foo", 1.5, -0.5, 0.0, 0, -3, float("nan"), [3], True])
def test_what_is_no_number_of_components_is_named(bad):
    with pytest.raises(InputError, match="n_components="):
        Summary.of(np.eye(4), bad)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("shape", [(300, 20), (120, 400)])
def test_equals_incremental_pca_with_the_same_truncation(offset, shape):
    X = gapped_rows(np.random.default_rng(1), *shape, 6, offset)
    theirs, ours = IncrementalPCA(6), Summary.empty(shape[1], 6, n_spare=0)
    for part in np.array_split(X, 6):
        theirs.partial_fit(part)
        ours = ours.update(part)
    # what their own mean loses at an offset is theirs
    accuracy = max(1e-12, 1e-17 * abs(offset))
    np.testing.assert_allclose(ours.singular_values, theirs.singular_values_, rtol=accuracy)
    assert sine_of_angle(theirs.components_.T, ours.directions.T) <= 100 * accuracy
    np.testing.assert_allclose(ours.mean, theirs.mean_, rtol=1e-14, atol=1e-13)
    np.testing.assert_allclose(ours.squares / ours.n, theirs.var_, rtol=1e4 * accuracy)


@pytest.mark.parametrize("offset", [1e4, 1e8])
def test_an_offset_costs_no_digits(offset):
    rng = np.random.default_rng(2)
    X = np.round(gapped_rows(rng, 400, 300, 4), 6)  # exact at either offset
    X = (X * 2**20).round() / 2**20
    shifted = X + offset
    ours = merge_in_tree([Summary.of(part, 4) for part in np.array_split(shifted, 5)], 2)
    reference = merge_in_tree([Summary.of(part, 4) for part in np.array_split(X, 5)], 2)
    near = shifted - offset  # what is left of the rows at that offset
    accuracy = max(1e-13, abs(near - X).max())
    np.testing.assert_allclose(ours.singular_values, reference.singular_values, rtol=100 * accuracy)


@pytest.mark.parametrize("forget", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("enhance", [1.0, 1.3])
def test_merging_two_subspaces_equals_the_svd_of_their_columns(forget, enhance):
    rng = np.random.default_rng(3)
    sides = []
    for r in (5, 8):
        U = np.linalg.qr(rng.standard_normal((60, r)))[0]
        sides += [U, np.sort(rng.uniform(0.1, 3, r))[::-1]]
    U1, s1, U2, s2 = sides
    ours = LowRank(U1.T, s1).discount(forget)
    ours = ours.append(Centered(enhance * s2[:, None] * U2.T), np.empty((0, 60)), 6)
    columns = np.hstack([forget * U1 * s1, enhance * U2 * s2])
    U, s, _ = np.linalg.svd(columns, full_matrices=False)
    np.testing.assert_allclose(ours.values, s[:6], rtol=1e-13)
    assert sine_of_angle(U[:, :6], ours.directions.T) < 1e-12


def test_forgetting_and_enhancing_weigh_the_rows():
    rng = np.random.default_rng(4)
    old, new = rng.standard_normal((30, 5)) + 4, rng.standard_normal((20, 5))
    merged = whole(old).merge(whole(new), forgetting=0.6, enhancing=1.5)
    weights = np.concatenate([np.full(30, 0.6**2), np.full(20, 1.5**2)])
    X = np.vstack([old, new])
    mean = weights @ X / weights.sum()
    scatter = (X - mean).T * weights @ (X - mean)
    assert merged.n == pytest.approx(weights.sum())
    np.testing.assert_allclose(merged.mean, mean)
    np.testing.assert_allclose(merged.eigenvalues, np.linalg.eigvalsh(scatter)[::-1], rtol=1e-12)
    assert merged.energy == pytest.approx(np.trace(scatter))
    assert_same(
        whole(old).update(new, forgetting=0.6), whole(old).merge(whole(new), forgetting=0.6)
    )
    with pytest.raises(InputError, match="factor of 0"):
        merged.discount(0)


def test_truncating_and_discounting_keep_account_of_what_is_left_out():
    known = LowRank(np.eye(4), np.array([4.0, 3.0, 2.0, 1.0]), tail=0.5, missing=0.25)
    cut = known.truncate(2)
    assert (len(cut.values), cut.tail, cut.missing, cut.dropped) == (2, 4.0, 0.25, 4.25)
    # what is cut off twice in a row is orthogonal: its norm is the larger one and no sum
    assert known.truncate(3).truncate(2).tail == 4.0
    assert known.truncate(4).dropped == known.dropped
    less = cut.discount(0.5)
    assert (less.tail, less.missing) == (1.0, 0.0625)
    np.testing.assert_array_equal(less.values, [2.0, 1.5])


def test_a_merged_summary_has_the_larger_room_of_both():
    rng = np.random.default_rng(14)
    small = Summary.of(rng.standard_normal((30, 9)), 2, n_spare=0)
    large = Summary.of(rng.standard_normal((30, 9)), 3, n_spare=2)
    for merged in (small.merge(large), large.merge(small)):
        assert (merged.n_components, merged.room, len(merged.directions)) == (3, 5, 5)


def condition(C, s, Y, room):
    """Which way rows were appended, and what came out."""
    by_gram = lowrank.append_by_gram(C, s, Centered(Y), Y[:0], room)
    return by_gram is not None, LowRank(C, s).append(Centered(Y), Y[:0], room)


@pytest.mark.parametrize(("smallest", "is_fast"), [(1e-1, True), (1e-5, True), (1e-7, False)])
def test_the_fast_way_is_left_where_it_would_lose_directions(smallest, is_fast):
    rng = np.random.default_rng(5)
    basis = np.linalg.qr(rng.standard_normal((80, 12)))[0].T
    s = np.geomspace(1, smallest, 6)
    C, Y = basis[:6], np.geomspace(0.5, smallest, 6)[:, None] * basis[6:]
    fast, found = condition(C, s, Y, 12)
    assert fast is is_fast
    reference = np.linalg.svd(np.vstack([s[:, None] * C, Y]))
    np.testing.assert_allclose(found.values, reference[1], rtol=1e-10 / smallest * 1e-3)
    np.testing.assert_allclose(found.directions @ found.directions.T, np.eye(12), atol=1e-14)
    assert sine_of_angle(reference[2][:12].T, found.directions.T) < 1e-8


def test_both_ways_give_the_same_where_both_can():
    rng = np.random.default_rng(6)
    C = np.linalg.qr(rng.standard_normal((50, 7)))[0].T
    s, Y = np.geomspace(5, 0.5, 7), rng.standard_normal((9, 50))
    fast = lowrank.append_by_gram(C, s, Centered(Y[:8]), Y[8:], 10)
    safe = lowrank.append_safely(C, s, Y, 10)
    np.testing.assert_allclose(fast.values, safe.values, rtol=1e-13)
    assert fast.tail == pytest.approx(safe.tail, rel=1e-12)
    assert sine_of_angle(fast.directions.T, safe.directions.T) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("condition_number", [1e2, 1e8])
def test_directions_stay_orthonormal_over_a_thousand_blocks(condition_number):
    rng = np.random.default_rng(7)
    basis = np.linalg.qr(rng.standard_normal((150, 30)))[0].T
    deviations = np.geomspace(1, 1 / condition_number, 30)
    summary = Summary.empty(150, 20, n_spare=10)
    scores = rng.standard_normal((1000, 15, 30)) * deviations
    for block in scores:
        summary = summary.update(block @ basis)
    C = summary.directions
    assert np.abs(C @ C.T - np.eye(len(C))).max() <= 1e-13
    together = scores.reshape(-1, 30)
    pooled = PCA(10, svd_solver="full").fit(together).components_ @ basis
    assert sine_of_angle(pooled.T, C[:10].T) < 1e-10


def test_rows_without_variance_and_directions_without_rows():
    summary = Summary.of(np.full((5, 3), 7.0), 2)
    assert summary.n == 5
    assert summary.energy == summary.angle_bound() == summary.variance_bound() == 0
    assert summary.directions.shape == (0, 3)
    both = summary.merge(Summary.of(np.full((5, 3), 9.0), 2))
    np.testing.assert_allclose(both.eigenvalues, [30.0])
    np.testing.assert_allclose(np.abs(both.directions), np.full((1, 3), 3**-0.5))


@pytest.mark.parametrize("d", [40, 1800])  # through the whole scatter, and not
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_sparse_rows_give_the_same_as_dense_ones(d, offset):
    rng = np.random.default_rng(8)
    X = sp.random_array((150, d), density=0.1, format="csr", rng=rng)
    X = X.tolil()
    X[:, 0] = offset + rng.standard_normal((150, 1)) + 5  # a column without a zero
    X = X.tocsr()
    sparse, dense = (
        merge_in_tree([Summary.of(X[:60], 3), Summary.of(X[60:], 3)]) for X in (X, X.toarray())
    )
    assert_same(sparse, dense, rtol=1e-9 if offset else 1e-12)


def test_the_scatter_and_the_low_rank_way_give_the_same():
    X = gapped_rows(np.random.default_rng(9), 200, 30, 4, 50.0)
    scatter = Scatter(30)
    stream = Summary.empty(30)
    for part in np.array_split(X, 7):
        scatter.update(part, center=True)
        stream = stream.update(part)
    assert_same(Summary.empty(30).of_scatter(scatter), stream)
    assert scatter_pays(500, 30, 500)
    assert not scatter_pays(500, 30, 1)  # a matrix to be rewritten for each row
    assert not scatter_pays(10_000, 30, 500)


def test_a_rule_finds_how_many_directions_a_site_sends():
    X = np.random.default_rng(10).standard_normal((900, 25)) * ([4.0] * 6 + [1.0] * 19)
    found = Summary.of(X, "mp", n_spare=3)
    assert (found.n_components, found.room, len(found.singular_values)) == (6, 9, 9)
    most = Summary.of(X, 0.5, n_spare=0).n_components
    assert most == PCA(0.5, svd_solver="full").fit(X).n_components_
    assert Summary.of(X[:0], "mp").n == 0


def test_columns_are_matched_by_name():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(11)
    frame = pd.DataFrame(rng.standard_normal((40, 3)), columns=["a", "b", "c"])
    one, other = frame[:25], frame[25:][["c", "a", "b"]]
    expected = whole(frame)
    assert_same(whole(one).merge(whole(other)), expected)
    assert_same(whole(one).update(other), expected)
    with pytest.raises(InputError, match="the columns differ: 1 missing"):
        whole(one).merge(whole(frame.rename(columns={"c": "x"})))
    with pytest.raises(InputError, match="one has column names"):
        whole(one).merge(whole(frame.to_numpy()))


def test_bad_input_is_named():
    summary = Summary.of(np.eye(4), 2)
    with pytest.raises(
        InputError, match="n_components=5 must be between 1 and 4, the number of features"
    ):
        Summary.of(np.eye(4), 5)
    with pytest.raises(InputError, match="n_spare=-1"):
        Summary.of(np.eye(4), 2, n_spare=-1)
    with pytest.raises(InputError, match="3 columns instead of 4"):
        summary.update(np.eye(3))
    with pytest.raises(InputError, match="3 columns instead of 4"):
        summary.merge(Summary.of(np.eye(3)))
    with pytest.raises(InputError, match="about zero and the other about the mean"):
        summary.merge(Summary.of(np.eye(4), center=False))
    with pytest.raises(InputError, match="expected a Summary, not ndarray"):
        summary.merge(np.eye(4))
    with pytest.raises(InputError, match="no summaries"):
        merge_in_tree([])
    with pytest.raises(InputError, match="fan_in=1"):
        merge_in_tree([summary, summary], 1)
    with pytest.raises(InputError, match="room=0"):
        summary.truncate(0)
    for bad, kind in ((np.nan, "NaN"), (np.inf, "infinity")):
        X = np.ones((5, 4))
        X[1, 2] = bad
        for give in (lambda X=X: Summary.of(X), lambda X=X: summary.update(X)):
            with pytest.raises(InputError, match=f"contains {kind} in columns 2"):
                give()
    for center in (True, False):
        with pytest.raises(InputError, match="large"):
            Summary.of(np.diag([1e200, 1e200]), center=center)
    with pytest.raises(InputError, match="large"):
        summary.update(np.diag([1e200] * 4))


def test_a_file_gives_back_the_same_bits(tmp_path):
    X = gapped_rows(np.random.default_rng(12), 300, 40, 3, 1e8)
    summary = merge_in_tree([Summary.of(part, 3, n_spare=2) for part in np.array_split(X, 4)])
    summary.save(tmp_path / "a.summary")
    back = Summary.load(tmp_path / "a.summary")
    more = X[:7] + 1
    for ours, theirs in ((summary, back), (summary.update(more), back.update(more))):
        assert ours.directions.tobytes() == theirs.directions.tobytes()
        assert ours.singular_values.tobytes() == theirs.singular_values.tobytes()
        assert ours.at.low.tobytes() == theirs.at.low.tobytes()
        assert (ours.n, ours.known.tail, ours.known.missing) == (
            theirs.n,
            theirs.known.tail,
            theirs.known.missing,
        )


def damage(arrays, header, change):
    arrays, header = dict(arrays), dict(header)
    change(arrays, header)
    return arrays, header


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda a, h: h.update(format=1), "has format 1; this version of fedpca reads format 3"),
        (lambda a, h: h.update(kind="model"), "is a model, not a summary"),
        (lambda a, h: h.update(features=["x"]), "must be a list of 4 strings"),
        (
            lambda a, h: h.update(room=1, n_components=2),
            "n_components=2 must be between 1 and room=1",
        ),
        (lambda a, h: h.update(room="many"), "room=many"),
        (lambda a, h: a.pop("mean"), "has no field 'mean'"),
        (
            lambda a, h: a.update(mean=np.zeros(3)),
            r"'mean_rest' in .*shape \(4,\) instead of \(d\) with d=3",
        ),
        (
            lambda a, h: a.update(squares=np.full(4, np.nan)),
            "'squares' in .* has 4 values that are not finite",
        ),
        (lambda a, h: a.update(squares=-np.ones(4)), "negative squares"),
        (lambda a, h: a.update(n=np.array(-1.0)), "negative number of rows"),
        (lambda a, h: a.update(tail=np.array(-1.0)), "negative error bound"),
        (lambda a, h: a.update(singular_values=np.array([0.1, 0.2])), "not in decreasing order"),
        (lambda a, h: a.update(directions=np.ones((2, 4))), "not orthonormal"),
        (lambda a, h: a.update(singular_values=np.array([9e9, 1.0])), "more energy along"),
        (lambda a, h: h.update(room=1, n_components=1), "more directions than its room"),
    ],
)
def test_a_file_that_is_not_a_summary_is_refused(tmp_path, change, text):
    rng = np.random.default_rng(13)
    Summary.of(rng.standard_normal((9, 4)), 2, n_spare=0).save(tmp_path / "good")
    arrays, header = damage(*contents_of(tmp_path / "good"), change)
    write_contents(tmp_path / "bad", arrays, header)
    with pytest.raises(FileError, match=text):
        Summary.load(tmp_path / "bad")


def test_files_of_other_kinds_are_refused(tmp_path):
    (tmp_path / "text").write_text("not a summary")
    for name in ("text", "missing"):
        with pytest.raises(FedpcaError):
            Summary.load(tmp_path / name)
