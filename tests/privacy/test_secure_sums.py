"""Fits with secure sums: the same results as without, totals alone, and every fault is noticed."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from fedpca import FederatedPCA, Federation, PersonalizedPCA, Policy, RobustPCA, Site
from fedpca.linalg.dense import sine_of_angle
from fedpca.privacy.secure_sum import ZERO
from fedpca.protocol.message import decode
from fedpca.protocol.question import _REGISTRY, question
from fedpca.testing import ScriptedEngine
from support import asks_for_size, every_other, first_of, gapped_rows, low_rank_rows

SOLVERS = ("covariance", "lanczos", "subspace-iteration", "local-power", "faps", "auto")
STRICT = Policy(require=("secure",))
K = 3
LEFT_OUT = {"explained_energy", "site_energies"}  # gathered questions about rows
MAX_ROUNDS = 5000


def parts_of(n=240, d=10, sites=3, **options):
    X = gapped_rows(np.random.default_rng(0), n, d, K, **options)
    return {f"site-{i}": part for i, part in enumerate(np.array_split(X, sites), start=1)}


def sites_of(parts, policy=None, **options):
    return {name: Site(part, name=name, policy=policy, **options) for name, part in parts.items()}


def fit(parts, *, secure=True, policy=None, solver="lanczos", k=K, weights=None, **parameters):
    federation = Federation.local(sites_of(parts, policy), secure=secure)
    return fit_over(federation, solver=solver, k=k, **parameters)


def fit_over(federation, *, solver="lanczos", k=K, **parameters):
    usual = {"random_state": 0, "max_rounds": MAX_ROUNDS}
    return FederatedPCA(k, solver=solver, **{**usual, **parameters}).fit(federation)


def same_bits(one, other):
    return (
        one.components_.tobytes() == other.components_.tobytes()
        and one.explained_variance_.tobytes() == other.explained_variance_.tobytes()
        and one.mean_.tobytes() == other.mean_.tobytes()
    )


def assert_equals_pooled(model, X, tolerance=1e-8):
    pooled = PCA(len(model.components_), svd_solver="full").fit(X)
    assert sine_of_angle(pooled.components_.T, model.components_.T) < tolerance
    np.testing.assert_allclose(
        model.explained_variance_, pooled.explained_variance_, rtol=tolerance
    )


def unlike(parts):
    """The same rows, sorted, so that every site has rows of its own kind."""
    X = np.vstack(list(parts.values()))
    X = X[np.argsort(X[:, 0])]
    return dict(zip(parts, np.split(X, [20, 100]), strict=True))


DATA = {
    "alike sites": parts_of(),
    "unlike sites": unlike(parts_of()),
    "an offset of 1e8": parts_of(offset=1e8),
    "many features": parts_of(24, 60),
    "tiny numbers": parts_of(scale=1e-12),
    "huge numbers": parts_of(scale=1e12),
    "an empty site and a single row": dict(
        zip("abcd", np.split(np.vstack(list(parts_of().values())), [0, 1, 90]), strict=True)
    ),
    "two sites": parts_of(sites=2),
    "120 sites": parts_of(480, 6, sites=120),
}


@pytest.mark.parametrize(("data", "solver"), every_other(DATA, SOLVERS))
def test_a_secure_fit_equals_pooled_pca(data, solver):
    if data == "120 sites" and solver != "covariance":
        pytest.skip("the neighbors of many sites are the same for every solver")
    parts = DATA[data]
    model, plain = (fit(parts, secure=secure, solver=solver) for secure in (True, False))
    X = np.vstack(list(parts.values()))
    if "1e8" in data:  # here, the pooled program itself loses digits
        X = X - X.mean(axis=0)
        np.testing.assert_allclose(model.mean_, plain.mean_, rtol=1e-15)
    assert_equals_pooled(model, X)
    asked = [entry["question"] for entry in plain.run_.history]
    assert [entry["question"] for entry in model.run_.history] == [
        name for name in asked if name not in LEFT_OUT
    ]


@pytest.mark.parametrize("solver", SOLVERS)
def test_units_of_very_different_sizes_do_not_disturb_a_scaled_fit(solver):
    units = 10.0 ** np.linspace(-6, 6, 10)
    parts = {name: part * units for name, part in DATA["unlike sites"].items()}
    model = fit(parts, solver=solver, scale=True)
    X = np.vstack(list(parts.values()))
    assert_equals_pooled(model, (X - X.mean(axis=0)) / X.std(axis=0))


def test_no_size_of_the_rows_stops_a_secure_fit():
    """One octave of sizes makes a ring without fractions, which is that of whole numbers."""
    X = np.random.default_rng(0).normal(size=(30, 4)) * [3, 1, 1, 1]
    X -= X.mean(axis=0)
    X *= np.sqrt(3e18) / np.linalg.norm(X)
    model = fit({"a": X[:10], "b": X[10:20], "c": X[20:]}, k=1)
    assert_equals_pooled(model, X)


@pytest.mark.parametrize("solver", ["covariance", "lanczos"])
def test_single_precision_weights_and_gaps_stay_what_they_are(solver):
    rng = np.random.default_rng(1)
    parts = DATA["unlike sites"]
    single = {name: part.astype(np.float32) for name, part in parts.items()}
    assert_equals_pooled(fit(single, solver=solver), np.vstack(list(single.values())).astype(float))
    gaps = {name: rng.random(part.shape) < 0.05 for name, part in parts.items()}
    holey = {name: np.where(gaps[name], np.nan, part) for name, part in parts.items()}
    counts = {name: rng.integers(0, 4, len(part)) for name, part in parts.items()}
    sites = {n: Site(part, name=n, weight=counts[n]) for n, part in holey.items()}
    model = fit_over(Federation.local(sites, secure=True), solver=solver, missing="mean")
    repeated = [
        np.repeat(np.where(gaps[n], model.mean_, part), counts[n], axis=0)
        for n, part in parts.items()
    ]
    assert_equals_pooled(model, np.vstack(repeated))


@pytest.mark.parametrize("k", ["auto", 0.9, None])
@pytest.mark.parametrize("solver", ["covariance", "lanczos"])
def test_the_number_of_components_is_found_under_masks(k, solver):
    plain, secure = (
        fit(DATA["unlike sites"], secure=secure, solver=solver, k=k) for secure in (False, True)
    )
    assert len(secure.components_) == len(plain.components_)
    assert sine_of_angle(plain.components_.T, secure.components_.T) < 1e-8
    np.testing.assert_allclose(secure.noise_variance_, plain.noise_variance_, rtol=1e-8, atol=1e-12)


ROBUST = partial(RobustPCA, random_state=0)
OTHERS = {
    "personalized power": PersonalizedPCA(2, 1, random_state=0),
    "personalized stiefel": PersonalizedPCA(2, 1, solver="stiefel", random_state=0),
    "personalized polar": PersonalizedPCA(2, 1, solver="polar", random_state=0),
    "robust auto": ROBUST(2),
    "robust threshold": ROBUST(2, solver="threshold"),
    "robust least-squares": ROBUST(2, solver="least-squares"),
    "robust dcf": ROBUST(2, solver="dcf", max_rounds=30),
    "robust up to 4": ROBUST(max_components=4),
}


def rows_with_local_parts():
    """Rows of three sites that share two components and have another one each."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    for i in range(3):
        deviations = np.full(12, 0.1)
        deviations[[0, 1, 2 + i]] = 5.0, 4.0, 3.0
        yield rng.standard_normal((80, 12)) * deviations @ basis.T


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_personalized_and_robust_fits_equal_those_without_masks(name):
    X = low_rank_rows(150, 12, 2, share=0.03, size=20.0, noise=0.01)[0]
    parts = {f"site-{i}": part for i, part in enumerate(np.array_split(X, 3))}
    if "personalized" in name:
        parts = {f"site-{i}": part for i, part in enumerate(rows_with_local_parts())}
    models = []
    for secure in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.filterwarnings("ignore", "site .*")
            federation = Federation.local(sites_of(parts), secure=secure)
            models.append(clone(OTHERS[name]).fit(federation))
    plain, secure = models
    assert sine_of_angle(plain.components_.T, secure.components_.T) < 1e-8
    assert {entry.how for entry in secure.run_.ledger} <= {"sent", "masked", "seen"}
    assert secure.run_.bytes_up == secure.run_.ledger.bytes_up
    seen = {entry.question for entry in secure.run_.ledger if entry.how == "seen"}
    assert not any(_REGISTRY[each].reads_rows for each in seen)


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_secure_fit_depends_on_neither_the_engine_nor_the_policy_nor_the_order(solver):
    parts = DATA["unlike sites"]
    first, backwards = fit(parts, solver=solver), fit(dict(reversed(parts.items())), solver=solver)
    strict = fit(parts, solver=solver, policy=STRICT)
    engine = ScriptedEngine(sites_of(parts))
    encoded = fit_over(Federation(engine, secure=True), solver=solver)
    threads = fit_over(
        Federation.local(sites_of(parts), secure=True, n_jobs=3, timeout=600.0), solver=solver
    )
    for other in (backwards, strict, encoded, threads):
        assert same_bits(first, other)
    assert {entry.how for entry in first.run_.ledger} <= {"sent", "masked", "seen"}
    assert first.run_.bytes_up == first.run_.ledger.bytes_up
    assert list(first.run_.ledger) == list(encoded.run_.ledger)


def masked_answers(parts, solver="covariance", **options):
    """Return the requests and the masked answers of a fit, with whether each is about sizes."""
    found = []

    def keep(reply):
        if "mask" in reply.request.header:
            found.append((reply.request, decode(reply.answer)))
        return reply.answer

    model = fit_over(Federation(ScriptedEngine(sites_of(parts), keep), secure=True), solver=solver)
    return model, found


def test_masked_answers_are_no_larger_than_plain_ones_but_for_wide_numbers():
    parts = parts_of(120, 300)
    _, found = masked_answers(parts)
    plain = {}

    def keep(reply):
        plain[reply.question] = decode(reply.answer)
        return reply.answer

    fit_over(Federation(ScriptedEngine(sites_of(parts), keep)), solver="covariance")
    for request, answer in found:
        if asks_for_size(request):
            assert answer.n_bytes < 2500
            continue
        before = plain[request.header["question"]]
        assert answer.arrays[ZERO].nbytes == 8
        for name, array in answer.arrays.items():
            if name == ZERO:
                continue
            bits, _ = request.header["mask"][name]
            assert array.nbytes == before.arrays[name].nbytes * bits // 64
            is_wide = before.arrays[name].ndim < 2 and before.arrays[name].dtype != np.int64
            assert bits == 64 or is_wide
    triangle = [a for r, a in found if "triangle" in r.header["question"] or a.n_bytes > 1e5]
    assert triangle
    assert all(answer.n_bytes < 1.01 * 8 * 300 * 301 / 2 + 1000 for answer in triangle)


def test_an_answer_never_repeats_and_no_part_of_the_answers_adds_up():
    parts = parts_of(200, 12, sites=5)
    runs = [masked_answers(parts)[1] for _ in range(2)]
    for (_, one), (_, other) in zip(*runs, strict=True):
        for name in one.arrays:
            assert not (one.arrays[name] == other.arrays[name]).any()
    answers = {}
    for request, answer in runs[0]:
        key = (request.header["round"], str(request.header["mask"]))
        answers.setdefault(key, []).append(answer.arrays)
    for given_ in answers.values():
        for chosen in range(1, 2 ** len(given_) - 1):
            some = [given_[i] for i in range(len(given_)) if chosen >> i & 1]
            for name in some[0]:
                total = sum(each[name].view(np.uint64) for each in some).ravel()
                # the high halves of small numbers would all be 0 or all ones
                high = (total >> np.uint64(48)).astype(int)
                assert total.size < 4 or np.unique(high).size > min(total.size, 20) // 2


HELD = {}


@pytest.fixture(scope="module")
def echo():
    """A question that sums what each site holds, without a bound that is known before."""

    @question(
        answers={"narrow": "float64 r c", "wide": "float64 r", "whole": "int64 r"},
    )
    def echoed_for_tests(site):
        return HELD[site.name]

    yield echoed_for_tests
    del _REGISTRY["echoed_for_tests"]


def secure_sum(echo, held):
    HELD.clear()
    HELD.update(held)
    rows = np.zeros((1, 1))
    with Federation.local(dict.fromkeys(held, rows), secure=True) as federation:
        return federation.run(
            lambda fed, _: fed.sum(echo), identity={"program": "echo", "parameters": {}}, seed=0
        )


def assert_is_sum(total, held):
    for field in ("narrow", "wide", "whole"):
        due = np.sum([each[field] for each in held.values()], axis=0)
        largest = max(np.abs(each[field]).max(initial=0) for each in held.values())
        atol = 0 if field == "whole" else 1e-12 * largest
        np.testing.assert_allclose(total[field], due, rtol=0, atol=atol)


def some_fields(rng, n_sites, exponents, shape=(3, 2)):
    def numbers(*shape):
        return rng.normal(size=shape) * 10.0 ** rng.integers(*exponents, size=shape, endpoint=True)

    return {
        f"site-{i}": {
            "narrow": numbers(*shape),
            "wide": numbers(shape[0]),
            "whole": rng.integers(-(2**40), 2**40, shape[0]),
        }
        for i in range(n_sites)
    }


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    n_sites=st.integers(2, 12),
    low=st.integers(-12, 12),
    high=st.integers(-12, 12),
)
@example(seed=1, n_sites=100, low=-12, high=12)  # all are neighbors
@example(seed=2, n_sites=101, low=-12, high=12)  # not all are neighbors
def test_a_secure_sum_is_the_sum_for_any_fields(echo, seed, n_sites, low, high):
    rng = np.random.default_rng(seed)
    held = some_fields(rng, n_sites, (min(low, high), max(low, high)))
    assert_is_sum(secure_sum(echo, held), held)


@pytest.mark.slow
@pytest.mark.parametrize("n_sites", first_of([200, 1000]))
def test_a_secure_sum_over_many_sites_is_the_sum(echo, n_sites):
    held = some_fields(np.random.default_rng(0), n_sites, (-12, 12), (20, 10))
    assert_is_sum(secure_sum(echo, held), held)
