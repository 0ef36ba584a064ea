"""Differentially private fits: what a row can change, what noise is added, and what comes of it."""

from __future__ import annotations

import math
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse, stats
from sklearn.base import clone

from fedpca import FederatedPCA, Federation, Policy, Privacy, Site
from fedpca.errors import FedpcaError, InputError, PolicyRefused
from fedpca.linalg.dense import sine_of_angle
from fedpca.privacy.gaussian import delta_of, epsilon_of, mu_of
from fedpca.protocol.message import compose
from fedpca.protocol.plan import DECLARE, PRIVATE, SECURE, RunPlan
from fedpca.rows import bounded
from fedpca.rows.bounded import MAX_ROWS, RADIUS
from fedpca.solvers.private import at_site, program
from fedpca.testing import ScriptedEngine
from support import draws, every_other, gapped_rows, repeat_noise
from transcripts import changed, contents

NAMES = ("a", "b", "c", "d")
GIVEN = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 2.5}
NOTHING = np.empty(0, np.uint8)


def quietly(estimator, X, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "only .* components stand out")
        return estimator.fit(X, **options)


def rows_of(n=4000, d=6, seed=0, **options):
    return gapped_rows(np.random.default_rng(seed), n, d, 2, **options)


def parts_of(X):
    return dict(zip(NAMES, np.array_split(X, len(NAMES)), strict=True))


def private(k=2, **settings):
    solver = settings.pop("solver", "auto")
    parameters = {name: settings.pop(name) for name in ("center",) if name in settings}
    given = {"epsilon": 1.0, "delta": 1e-6, "row_bound": 12.0, **settings}
    return FederatedPCA(k, solver=solver, privacy=Privacy(**given), random_state=0, **parameters)


@pytest.fixture
def repeatable(monkeypatch):
    repeat_noise(monkeypatch)


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(at_site, "_noise", lambda variance, size: np.zeros(size, np.int64))


# what one row changes -------------------------------------------------------------------------------


def plan_of(n_sites=1, secure=False, **given):
    asked = {PRIVATE: Privacy(**{**GIVEN, **given}).to_plain()} | ({SECURE: True} if secure else {})
    return RunPlan("r", "FederatedPCA", {}, dict.fromkeys(NAMES[:n_sites], ""), privacy=asked)


def answers_of(rows, plan, *asked):
    """Answer questions at a site as in a run, and return the last answer."""
    site = Site(rows, name="a")
    header = {"run": "r.0", "round": 0, "question": DECLARE, "verb": "gather", "n_sites": 1}
    header["memory"] = 0
    arrays = {"plan": np.frombuffer(plan.to_bytes(), np.uint8)}
    reply = site.answer(compose(header, arrays))
    for number, (question, arrays) in enumerate(asked, start=1):
        assert "error" not in reply.header, reply.header
        header |= {"round": number, "question": question.name, "verb": "sum"}
        reply = site.answer(compose(header, arrays))
    assert "error" not in reply.header, reply.header
    return reply.arrays


def question_of(name, d, guess, seed):
    """The questions that lead to a mechanism, and what they ask with."""
    first = (at_site.noisy_count_and_sum, {"features": NOTHING})
    if name == "sum":
        return [first]
    mean = {"mean": np.full(d, guess)}
    if name == "scatter":
        return [first, (at_site.noisy_scatter, mean)]
    k = min(d, 3)
    Z = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, k)))[0]
    return [first, (at_site.noisy_product, {**mean, "Z": Z})]


def spent_by(name, plan, one, other):
    """Return the mu^2 by which two answers differ, given the noise of all sites that add some."""
    n_noisy = Privacy.of(plan).n_noisy(plan)
    parts = []
    for field in one:
        difference = [
            int(x) - int(y) for x, y in zip(one[field].flat, other[field].flat, strict=True)
        ]
        variance = VARIANCES[name](plan)
        if field == "triangle":
            d = math.isqrt(2 * len(difference))
            rows, columns = np.tril_indices(d)
            off = [
                variance if i == j else variance // 2 for i, j in zip(rows, columns, strict=True)
            ]
        else:
            off = [variance] * len(difference)
        parts += [x * x / (n_noisy * v) for x, v in zip(difference, off, strict=True)]
    return math.fsum(parts)


VARIANCES = {
    "sum": at_site.sum_variance,
    "scatter": at_site.scatter_variance,
    "product": at_site.product_variance,
}
SPENDS = {
    "sum": at_site.spends_mean,
    "scatter": at_site.spends_scatter,
    "product": at_site.spends_product,
}
mechanisms = pytest.mark.parametrize("mechanism", list(VARIANCES))

numbers = (
    st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e300, -1e300, 2.5, 1e4])
    | st.floats(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
)


@st.composite
def adjacent(draw):
    """Rows, and the same rows with one more at any position, perhaps one that is there already."""
    d = draw(st.integers(1, 6))
    rows = draw(hnp.arrays(np.float64, (draw(st.integers(0, 6)), d), elements=numbers))
    row = draw(hnp.arrays(np.float64, d, elements=numbers))
    if len(rows) and draw(st.booleans()):
        row = rows[0]
    more = np.insert(rows, draw(st.integers(0, len(rows))), row, axis=0)
    return rows, more


def in_kind(rows, kind):
    if kind == "sparse":
        return sparse.csr_array(rows)
    if kind == "float32":
        return np.clip(rows, -3e38, 3e38).astype(np.float32)
    return rows


@pytest.mark.slow
@mechanisms
@draws(50)
@given(
    adjacent(),
    st.sampled_from(["plain", "sparse", "float32"]),
    st.sampled_from([1e-100, 1e-3, 2.5, 1e6]),
    st.sampled_from([0.0, -3.0, 1e200]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([0.001, 0.3, 1.0, 1000.0]),
)
@example((np.empty((0, 1)), np.array([[1e300]])), "plain", 1e-100, 0.0, 1, 1, 1.0)
@example((np.empty((0, 2)), np.array([[1e300, -1e300]])), "plain", 2.5, 0.0, 2, 1, 1.0)
def test_no_row_moves_a_sum_beyond_what_is_spent(
    mechanism, tables, kind, bound, guess, step, n_sites, epsilon
):
    fewer, more = (in_kind(rows, kind) for rows in tables)
    plan = plan_of(n_sites, n_sites > 1, row_bound=bound, around=guess, epsilon=epsilon)
    plan = RunPlan(**{**vars(plan), "privacy": {PRIVATE: plan.privacy[PRIVATE]}})  # masks hide all
    asked = question_of(mechanism, more.shape[1], guess, step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at_site, "_noise", lambda variance, size: np.zeros(size, np.int64))
        patch.setattr(bounded, "rows_per_block", lambda d: step)
        one, other = (answers_of(rows, plan, *asked) for rows in (fewer, more))
    assert spent_by(mechanism, plan, one, other) <= SPENDS[mechanism](plan) * (1 + 1e-12)


@mechanisms
def test_a_row_at_the_bound_takes_all_that_is_spent(mechanism, no_noise):
    """So that no noise is wasted, and the test above can fail."""
    rows, plan = np.zeros((1, 4)), plan_of()
    rows[0, 0] = 1e9
    asked = question_of(mechanism, 4, 0.0, 0)
    if mechanism == "product":
        asked[1][1]["Z"] = np.eye(4)[:, :2]
    one, other = (answers_of(each, plan, *asked) for each in (rows[:0], rows))
    assert spent_by(mechanism, plan, one, other) > 0.9999 * SPENDS[mechanism](plan)


def test_a_site_without_a_guard_bounds_what_other_blocks_make_of_a_row(no_noise):
    rows, plan = np.zeros((1, 3)), plan_of()
    rows[0, 0] = 1e9
    asked = question_of("product", 3, 0.0, 0)
    asked[1][1]["Z"] = np.eye(3)[:, [0, 0, 0]]
    one, other = (answers_of(each, plan, *asked) for each in (rows[:0], rows))
    assert spent_by("product", plan, one, other) <= at_site.spends_product(plan)
    asked[1][1]["Z"] = 2 * np.eye(3)
    with pytest.raises(AssertionError, match="columns longer than 1"):
        answers_of(rows, plan, *asked)


def test_all_releases_together_spend_the_promise():
    for solver, n_products in (
        ("covariance", 5),
        ("subspace-iteration", 3),
        ("subspace-iteration", 1),
    ):
        model = quietly(private(solver=solver, n_products=n_products), parts_of(rows_of()))
        privacy = model.run_.privacy
        assert privacy["mu"] == pytest.approx(mu_of(1.0, 1e-6), rel=1e-12)
        assert privacy["epsilon"] == pytest.approx(1.0, rel=1e-12)
        assert privacy["promised"] == 1.0


# noise ----------------------------------------------------------------------------------------------


def totals(n_sites, secure, n_silent, silent, mechanism, n_draws, d=40):
    """The noise in a total that the coordinator sees, divided by its stated deviation."""
    rows = {name: np.zeros((1, d)) for name in NAMES[:n_sites]}
    draw, found = at_site._noise, []

    def at_a_site(variance, size):  # sites are asked in order
        at_a_site.turn += 1
        is_silent = at_a_site.turn % n_sites < silent
        return np.zeros(size, np.int64) if is_silent else draw(variance, size)

    def ask(fed, _):
        mean = np.zeros(d)
        at_a_site.turn = -1
        total = fed.sum(at_site.noisy_count_and_sum, features=NOTHING)["total"]
        if mechanism == "sum":
            return total
        at_a_site.turn = -1
        if mechanism == "product":
            return fed.sum(at_site.noisy_product, mean=mean, Z=np.eye(d)[:, :5])["Y"].ravel()
        triangle = fed.sum(at_site.noisy_scatter, mean=mean)["triangle"]
        weights = np.full(len(triangle), math.sqrt(2.0))
        weights[np.cumsum(np.arange(1, d + 1)) - 1] = 1.0
        return triangle * weights

    with pytest.MonkeyPatch.context() as patch:
        # diagonal entries are drawn first, and then the whole triangle
        patch.setattr(at_site, "_noise", at_a_site if mechanism != "scatter" else draw)
        if mechanism == "scatter":
            patch.setattr(at_site, "noisy_scatter", at_site.noisy_scatter)
            patch.setattr(at_site, "_noise", _silent_scatter(draw, n_sites, silent))
        for seed in range(n_draws):
            fed = Federation.local(rows, secure=secure)
            privacy = Privacy(**GIVEN, n_silent=n_silent)
            identity = {"program": "FederatedPCA", "privacy": {PRIVATE: privacy.to_plain()}}
            found.append(fed.run(ask, identity=identity, seed=seed))
            plan = fed.plan
    return np.concatenate(found).astype(float), plan


def _silent_scatter(draw, n_sites, silent):
    """Noise for the sums from all sites, and for the triangle (two draws a site) from some."""
    calls = []

    def at_a_site(variance, size):
        calls.append(size)
        turn = (len(calls) - 1) % (3 * n_sites)
        is_silent = turn >= n_sites and (turn - n_sites) // 2 < silent
        return np.zeros(size, np.int64) if is_silent else draw(variance, size)

    return at_a_site


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "given"),
    every_other(
        VARIANCES,
        [(True, 0, 0), (True, 1, 0), (True, 1, 1), (True, 3, 2), (True, 3, 3), (False, 1, 0)],
    ),
)
def test_totals_have_the_stated_noise_with_silent_sites(mechanism, given, repeatable):
    secure, n_silent, silent = given
    n_sites = 4
    n_draws = {"sum": 60, "product": 12, "scatter": 4}[mechanism]
    values, plan = totals(n_sites, secure, n_silent, silent, mechanism, n_draws)
    needed = {
        "sum": at_site.SUM_SENSITIVITY2,
        "scatter": at_site.SCATTER_SENSITIVITY2,
        "product": at_site.PRODUCT_SENSITIVITY2,
    }[mechanism] / SPENDS[mechanism](plan)
    n_noisy = n_sites - n_silent if secure else 1
    stated = needed * (n_sites - silent) / n_noisy
    share = (values**2).mean() / stated
    deviation = math.sqrt(2 / len(values))
    assert abs(share - 1) < 4 * deviation
    assert stated >= needed or silent > n_silent
    assert stats.kstest(values / math.sqrt(stated), "norm").pvalue > 1e-3


def test_noise_is_new_in_every_run_whatever_the_seed():
    parts = parts_of(rows_of(400))
    one, other = (quietly(private(), parts) for _ in range(2))
    assert one.components_.tobytes() != other.components_.tobytes()


def test_a_question_that_is_asked_again_gets_the_same_noise():
    kept = {}

    def lose_first(reply):
        answer = kept.setdefault((reply.site, reply.round), reply.answer)
        if reply.site == "b" and reply.round in (2, 3) and reply.answer is answer:
            return None  # lost on its way, and asked for again
        assert reply.answer == answer
        return reply.answer

    engine = ScriptedEngine(parts_of(rows_of(400)), lose_first)
    with pytest.warns(UserWarning, match="added all of the noise"):
        model = quietly(private(), Federation(engine))
    assert [a.question for a in engine.asked].count("noisy_scatter") == 2
    assert model.run_.privacy["epsilon"] == pytest.approx(1.0)


# a distinguisher ------------------------------------------------------------------------------------


def lower_bound(with_row, without, delta, confidence=0.95):
    """Return an epsilon that the mechanism has at least, from its statistic on both tables.

    The threshold is chosen on one half of the draws, and both error rates are bounded on the other
    (Clopper and Pearson).
    """
    half = len(with_row) // 2
    best, threshold = -math.inf, 0.0
    for t in np.quantile(with_row[:half], np.linspace(0.02, 0.98, 97)):
        hit, false = (with_row[:half] > t).mean(), (without[:half] > t).mean()
        if hit > delta:
            got = math.log((hit - delta) / max(false, 10 / half))
            best, threshold = max((best, threshold), (got, t))
    n, level = len(with_row) - half, (1 - confidence) / 2
    hits, falses = (int((each[half:] > threshold).sum()) for each in (with_row, without))
    least = stats.beta.ppf(level, hits, n - hits + 1) if hits else 0.0
    most = stats.beta.ppf(1 - level, falses + 1, n - falses)
    return math.log(max(least - delta, 1e-300) / most)


def statistics(mechanism, plan, n_draws, less_noise):
    """The log odds of a row at the bound against no row, over many noisy answers of a site.

    A draw of the noise is what the site itself would add. The answers without noise come from it.
    """
    rows = np.zeros((1, 3))
    rows[0] = [1e9, -1e9, 5e8]
    asked = question_of(mechanism, 3, 0.0, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at_site, "_noise", lambda variance, size: np.zeros(size, np.int64))
        without, with_row = (answers_of(each, plan, *asked) for each in (rows[:0], rows))
    difference = np.concatenate([(with_row[f] - without[f]).ravel() for f in with_row])
    variance = VARIANCES[mechanism](plan)
    variances = np.full(len(difference), variance)
    if mechanism == "scatter":
        variances[[1, 3, 4]] //= 2
    halved = variances // less_noise**2
    sides = []
    for center in (difference, np.zeros(len(difference))):
        draws = np.array([at_site._noise(int(v), n_draws) for v in halved], float).T
        sides.append((draws + center) @ (difference / variances.astype(float)))
    return sides


CASES = [(0.5, 1e-2), (2.0, 1e-2), (4.0, 1e-3)]


@pytest.mark.slow
@mechanisms
@pytest.mark.parametrize(("epsilon", "delta"), CASES, ids=str)
def test_a_distinguisher_stays_below_the_claim_unless_the_noise_is_halved(
    mechanism, epsilon, delta, repeatable
):
    plan = plan_of(epsilon=epsilon, delta=delta, n_products=1)
    claim = epsilon_of(math.sqrt(SPENDS[mechanism](plan)), delta)
    got, too_much = (
        lower_bound(*statistics(mechanism, plan, 40_000, less), delta) for less in (1, 2)
    )
    assert got < claim
    assert too_much > claim or claim == 0.0
    assert delta_of(claim, math.sqrt(SPENDS[mechanism](plan))) <= delta


# fits -----------------------------------------------------------------------------------------------


def grid_rows(n=300, d=5):
    """Whole numbers on the grid with mean 0."""
    half = np.rint(rows_of(n, d) * 100)
    return np.vstack([half, -half])


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("n_sites", [1, 3])
@pytest.mark.parametrize("k", [2, 0.8, None])
def test_zero_noise_equals_no_privacy_to_the_bit_on_the_grid(center, n_sites, k):
    X = grid_rows()
    parts = np.array_split(X, n_sites)
    model = private(k, epsilon=math.inf, row_bound=float(RADIUS), center=center).fit(parts)
    exact = FederatedPCA(k, solver="covariance", center=center).fit(parts)
    for name in ("components_", "explained_variance_", "mean_", "singular_values_"):
        assert getattr(model, name).tobytes() == getattr(exact, name).tobytes(), name
    assert model.n_samples_ == exact.n_samples_ == len(X)
    assert model.run_.privacy["epsilon"] == math.inf


@pytest.mark.parametrize("solver", ["covariance", "subspace-iteration"])
def test_zero_noise_equals_no_privacy_for_ordinary_rows(solver):
    X = rows_of(offset=3.0)
    model = private(
        solver=solver, epsilon=math.inf, row_bound=100.0, around=11.0, n_products=30
    ).fit(parts_of(X))
    exact = FederatedPCA(2, solver="covariance").fit(X)
    assert sine_of_angle(model.components_.T, exact.components_.T) < 1e-5
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=1e-5)
    np.testing.assert_allclose(model.mean_, exact.mean_, atol=1e-4)
    np.testing.assert_allclose(model.noise_variance_, exact.noise_variance_, rtol=1e-4)


@pytest.mark.parametrize("solver", ["covariance", "subspace-iteration"])
def test_a_private_fit_is_near_the_exact_one(solver, repeatable):
    X = rows_of(40_000, 8)
    model = private(solver=solver, epsilon=2.0).fit(parts_of(X))
    exact = FederatedPCA(2).fit(X)
    sine = sine_of_angle(model.components_.T, exact.components_.T)
    assert 0 < sine < model.run_.angle_bound < 0.3
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=0.05)
    assert abs(model.n_samples_ - 40_000) < 1000
    assert model.run_.n_certain == 2
    assert model.site_variance_ratio_ == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "solver"),
    every_other(
        [(20, 1.0, 0.5), (20, 10.0, 2.2), (50, 4.0, 1.0)], ["covariance", "subspace-iteration"]
    ),
)
def test_the_stated_angle_holds_in_95_of_100_fits(solver, given, repeatable):
    d, epsilon, rest = given
    rng = np.random.default_rng(0)
    deviations = np.concatenate([[4.0, 3.2, 2.6], np.full(d - 3, rest)])
    X = rng.standard_normal((8000, d)) * deviations
    bound = 1.3 * float(np.linalg.norm(deviations))
    given = {"row_bound": bound, "solver": solver}
    exact = private(3, **given | {"epsilon": math.inf, "solver": "covariance"}).fit([X])
    n_held, n_fits = 0, 40
    for _ in range(n_fits):
        model = quietly(private(3, epsilon=epsilon, **given), [X])
        sine = sine_of_angle(model.components_.T, exact.components_.T)
        n_held += sine <= model.run_.angle_bound
    assert n_held >= 0.95 * n_fits


def test_ranks_follow_from_noisy_sums_alone(repeatable):
    for n_found, seed in ((1, 0), (2, 3)):
        X = rows_of(40_000, 8, seed)
        assert len(FederatedPCA("auto").fit(X).components_) == n_found
        for solver in ("covariance", "subspace-iteration")[
            :n_found
        ]:  # products tell nothing about columns
            model = quietly(private("auto", epsilon=4.0, solver=solver), parts_of(X))
            assert len(model.components_) == n_found
    share = private(0.8, epsilon=4.0).fit(parts_of(X))
    assert len(share.components_) == len(FederatedPCA(0.8).fit(X).components_)
    gap = private("gap", epsilon=10.0).fit(parts_of(X))
    assert len(gap.components_) == len(FederatedPCA("gap").fit(X).components_)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["covariance", "subspace-iteration"])
@pytest.mark.parametrize("n", [0, 200, 3000])
def test_noise_alone_rarely_stands_out(solver, n, repeatable):
    """Neither that in the scatter nor that in the mean, of which a wrong mean makes a component."""
    X = 1e-3 * np.random.default_rng(0).standard_normal((n, 8))
    n_certain = []
    for _ in range(40):
        model = quietly(private(1, epsilon=0.5, solver=solver), [X])
        n_certain.append(model.run_.n_certain)
    assert sum(n_certain) <= 4  # 5 % are expected at most


def test_components_that_noise_hides_are_warned_of():
    with pytest.warns(UserWarning, match=r"only \d of the 4 components stand out .* epsilon=0.01"):
        private(4, epsilon=0.01).fit([rows_of(500)])


def test_wide_rows_are_fitted_by_products(monkeypatch, repeatable):
    monkeypatch.setattr(program, "MAX_SCATTER_FEATURES", 50)
    X = rows_of(3000, 60)
    model = quietly(private(epsilon=10.0, row_bound=10.0), parts_of(X))
    asked = [entry["question"] for entry in model.run_.history]
    assert asked.count("noisy_product") == 5
    assert "noisy_scatter" not in asked
    assert sine_of_angle(model.components_.T, FederatedPCA(2).fit(X).components_.T) < 0.2
    monkeypatch.setattr(program, "MAX_SCATTER_FEATURES", 60)
    asked = [e["question"] for e in quietly(private(row_bound=10.0), parts_of(X)).run_.history]
    assert asked[-1] == "noisy_scatter"


def test_sites_with_one_row_and_with_none_take_part():
    X = rows_of(600)
    parts = {"a": X[:1], "b": X[1:1], "c": X[1:]}
    model = quietly(private(epsilon=math.inf, row_bound=50.0), parts)
    exact = FederatedPCA(2).fit(X)
    assert sine_of_angle(model.components_.T, exact.components_.T) < 1e-4
    assert model.n_samples_ == 600


def test_reordered_columns_and_sparse_rows_give_the_same():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(rows_of(600), columns=list("pqrstu"))
    half = frame.iloc[300:]
    shuffled = {"a": frame.iloc[:300], "b": half[list("utsrqp")]}
    asked = {"epsilon": math.inf, "row_bound": 50.0}
    model = private(**asked).fit(shuffled)
    same = private(**asked).fit({"a": frame.iloc[:300], "b": half})
    assert model.components_.tobytes() == same.components_.tobytes()
    values = frame.to_numpy()
    from_sparse = private(**asked).fit([sparse.csr_array(values)])
    assert from_sparse.components_.tobytes() == private(**asked).fit([values]).components_.tobytes()


# refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "settings", "words"),
    [
        ({"scale": True}, {}, "scale=True has no differentially private mechanism"),
        ({"missing": "mean"}, {}, "missing='mean' has no differentially private mechanism"),
        ({"missing": "drop"}, {}, "missing='drop' has no differentially private mechanism"),
        ({"solver": "lanczos"}, {}, "solver='lanczos' must be one of"),
        ({"solver": "merge"}, {}, "solver='merge' must be one of"),
        ({}, {"around": (1.0, 2.0)}, "around has 2 numbers for 6 features"),
        ({"n_components": 7}, {}, "n_components=7"),
    ],
    ids=str,
)
def test_what_has_no_mechanism_is_refused_before_anything_about_rows_is_sent(
    parameters, settings, words
):
    engine = ScriptedEngine(parts_of(rows_of(400)))
    given = {"n_components": 2, "privacy": Privacy(**GIVEN, **settings), **parameters}
    with pytest.raises(FedpcaError, match=words):
        FederatedPCA(**given).fit(Federation(engine, secure=True))
    assert not [each for each in engine.asked if each.question.startswith("noisy")]


def test_weights_are_refused_and_so_are_settings_of_another_kind():
    X = rows_of(400)
    with pytest.raises(InputError, match="weights"):
        private().fit(X, sample_weight=np.ones(len(X)))
    with pytest.raises(ValueError, match="privacy"):
        FederatedPCA(2, privacy=1.0).fit(X)


def test_too_many_rows_are_refused_by_their_noisy_number(monkeypatch):
    monkeypatch.setattr(program, "MAX_ROWS", 300)
    with pytest.raises(InputError, match="at most 300 rows at all sites"):
        private(epsilon=1e5).fit(parts_of(rows_of(400)))
    assert MAX_ROWS * RADIUS**2 <= 2**61


def test_bad_values_are_not_counted():
    X = rows_of(400)
    X[3, 1] = np.nan
    with pytest.raises(InputError, match=r"site-1.*does not tell how many"):
        private().fit([X, X])


# estimators, files, journals, and guards ------------------------------------------------------------


def test_estimators_keep_their_privacy(tmp_path):
    estimator = private()
    assert clone(estimator).privacy == estimator.privacy
    assert clone(estimator).set_params(privacy=None).get_params()["privacy"] is None
    model = quietly(estimator, parts_of(rows_of()))
    again = pickle.loads(pickle.dumps(model))
    model.save(tmp_path / "model.safetensors")
    loaded = FederatedPCA.load(tmp_path / "model.safetensors")
    for other in (again, loaded):
        assert other.privacy == model.privacy
        assert other.components_.tobytes() == model.components_.tobytes()
        assert other.run_.privacy == model.run_.privacy
        assert other.n_samples_ == model.n_samples_


class Crash(BaseException):
    """A killed process, which nothing catches."""


@pytest.mark.parametrize("solver", ["covariance", "subspace-iteration"])
@pytest.mark.parametrize("secure", [False, True])
def test_a_resumed_run_gives_the_same_bits_and_asks_nothing_again(solver, secure, tmp_path):
    journal, parts = tmp_path / "journal", parts_of(rows_of(600))
    estimator = private(solver=solver)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Federation.local(parts, journal=journal, secure=secure) as fed:
            model = estimator.fit(fed)
        engine = ScriptedEngine(parts, journal=journal)
        again = clone(estimator).fit(Federation(engine, journal=journal, secure=secure))
    assert again.components_.tobytes() == model.components_.tobytes()
    assert not [each for each in engine.asked if each.question.startswith("noisy")]
    assert again.run_.privacy == model.run_.privacy


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("at", [2, 3])
def test_a_run_that_crashed_repeats_the_answers_that_it_had(secure, at, tmp_path):
    journal, parts, seen = tmp_path / "journal", parts_of(rows_of(600)), {}

    def keep(reply):
        key = reply.site, reply.question
        assert seen.setdefault(key, contents_of(reply.answer)) == contents_of(reply.answer)
        if reply.round == at and reply.site == "b" and not keep.has_crashed:
            keep.has_crashed = True
            raise Crash
        return reply.answer

    def contents_of(answer):
        from fedpca.protocol.message import decode

        return {name: a.tobytes() for name, a in decode(answer).arrays.items()}

    keep.has_crashed = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Crash):
            private().fit(
                Federation(
                    ScriptedEngine(parts, keep, journal=journal), journal=journal, secure=secure
                )
            )
        del seen["b", DECLARE]
        engine = ScriptedEngine(parts, keep, journal=journal)
        model = private().fit(Federation(engine, journal=journal, secure=secure))
    assert model.run_.privacy["epsilon"] == pytest.approx(1.0)


def test_a_journal_is_not_resumed_with_another_promise(tmp_path):
    journal, parts = tmp_path / "journal", parts_of(rows_of(600))
    quietly(private(), Federation.local(parts, journal=journal, secure=True))
    with pytest.raises(FedpcaError, match="journal"):
        quietly(private(epsilon=2.0), Federation.local(parts, journal=journal, secure=True))


def guarded(parts, policy):
    return [Site(rows, name=name, policy=policy) for name, rows in parts.items()]


@pytest.mark.parametrize("solver", ["auto", "covariance", "subspace-iteration"])
@pytest.mark.parametrize("policy", [Policy(), Policy(require=("secure",), min_rows=5)])
def test_guarded_sites_admit_private_runs(solver, policy):
    fed = Federation.local(guarded(parts_of(rows_of()), policy), secure=True)
    model = quietly(private(solver=solver), fed)
    assert model.run_.privacy["epsilon"] == pytest.approx(1.0)


def test_guarded_sites_refuse_a_private_run_that_has_no_mechanism():
    plan = plan_of()
    for parameters, words in (
        ({"scale": True}, "scale=True"),
        ({"missing": "mean"}, "missing='mean'"),
        ({"solver": "lanczos"}, "solver='lanczos'"),
        ({"center": "no"}, "center='no'"),
        ({"n_components": -1}, "n_components=-1"),
        ({"whiten": True}, "a parameter that FederatedPCA does not have"),
    ):
        site = Site(rows_of(40), name="a", policy=Policy())
        arrays = RunPlan(**{**vars(plan), "parameters": parameters}).to_bytes()
        header = {"run": "r.0", "round": 0, "question": DECLARE, "verb": "gather", "n_sites": 1}
        reply = site.answer(
            compose({**header, "memory": 0}, {"plan": np.frombuffer(arrays, np.uint8)})
        )
        assert reply.header.get("error") == "PolicyRefused", reply.header
        assert words in reply.header["text"]


def test_hostile_promises_are_refused_in_clear_words():
    hostile = {}, {"epsilon": "x"}, {**GIVEN, "delta": 2}, {**GIVEN, "around": "x"}, {"a": []}
    for asked in hostile:
        plan = RunPlan(**{**vars(plan_of()), "privacy": {PRIVATE: asked}})
        for policy in (Policy(), None):
            site = Site(rows_of(40), name="a", policy=policy)
            header = {"run": "r.0", "question": DECLARE, "verb": "gather", "n_sites": 1}
            header |= {"memory": 0, "round": 0}
            data = np.frombuffer(plan.to_bytes(), np.uint8)
            reply = site.answer(compose(header, {"plan": data}))
            if "error" not in reply.header:  # an open site asks for no more than it needs
                header |= {"question": "noisy_count_and_sum", "round": 1, "verb": "sum"}
                reply = site.answer(compose(header, {"features": NOTHING}))
            assert reply.header["error"] in ("PolicyRefused", "InputError"), asked
            assert "see the site's log" not in reply.header["text"]


@pytest.mark.parametrize("solver", ["covariance", "subspace-iteration"])
def test_a_guarded_site_answers_nothing_but_the_honest_question(solver):
    requests, replies = [], []

    def keep(reply):
        if reply.site == "a":
            requests.append(reply.request)
            replies.append(reply.answer)
        return reply.answer

    parts = parts_of(rows_of(400))
    engine = ScriptedEngine(guarded(parts, Policy()), keep, as_bytes=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private(solver=solver, n_products=3).fit(Federation(engine))
    names = [request.header["question"] for request in requests]
    site = Site(parts["a"], name="a", policy=Policy())
    for at, request in enumerate(requests):
        for other in requests[1:]:
            if at and other.header["question"] != names[at]:
                wrong = changed(other, round=request.header["round"])
                refused = site.answer(wrong)
                assert refused.header.get("error") == "PolicyRefused", (names[at], other.header)
        if "Z" in request.arrays:
            for Z in (2 * request.arrays["Z"], request.arrays["Z"] + 1e-3):
                wrong = changed(request, {**request.arrays, "Z": Z})
                assert site.answer(wrong).header.get("error")
        if "mean" in request.arrays and at > 3:
            moved = {**request.arrays, "mean": request.arrays["mean"] + 1.0}
            assert site.answer(changed(request, moved)).header.get("error")
        reply = site.answer(request)
        assert "error" not in reply.header, reply.header
        assert contents(site.answer(request)) == contents(reply)
        if "mean" in request.arrays:  # other numbers in a round that was answered change nothing
            moved = {**request.arrays, "mean": request.arrays["mean"] + 1.0}
            assert contents(site.answer(changed(request, moved))) == contents(reply)
    for request in requests[1:]:
        again = site.answer(changed(request, round=requests[-1].header["round"] + 1))
        assert again.header.get("error") == "PolicyRefused"


def test_a_private_question_needs_a_plan():
    site = Site(rows_of(40), name="a")
    header = {"run": "r.0", "round": 1, "question": "noisy_count_and_sum", "verb": "sum"}
    reply = site.answer(compose({**header, "n_sites": 1, "memory": 0}, {"features": NOTHING}))
    assert reply.header["error"] == PolicyRefused.__name__
    assert "no plan with privacy settings was declared" in reply.header["text"]
