"""The number of components that sign flips find, and what the flips tell about single rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from fedpca import FederatedPCA, Federation, Policy, Site, StreamingPCA
from fedpca.engines.local import LocalEngine
from fedpca.errors import FedpcaError, PolicyRefused
from fedpca.linalg.dense import unpack_triangle
from fedpca.linalg.parallel_analysis import count_above, noise_floor
from fedpca.linalg.rank_rules import Spectrum
from fedpca.solvers import sign_flips
from fedpca.solvers.common_features import common_features
from fedpca.solvers.sign_flips import FlipSecret
from fedpca.solvers.standardize import ask_moments, standardize_sites
from support import every_other, first_of

ALLOWED = Policy(allow=("federated", "auto"))


def planted(rng, n, d, k, unequal):
    """Noise, unequal by row or column, and k directions that stand out from its largest one."""
    rows = np.exp(0.7 * rng.standard_normal((n, 1))) if unequal == "rows" else np.ones((n, 1))
    columns = np.exp(0.7 * rng.standard_normal(d)) if unequal == "columns" else np.ones(d)
    noise = rng.standard_normal((n, d)) * rows * columns
    largest = np.linalg.norm(noise, 2)
    U = np.linalg.qr(rng.standard_normal((n, k)))[0]
    V = np.linalg.qr(rng.standard_normal((d, k)))[0]
    return noise + (U * np.linspace(3, 1.7, k) * largest) @ V.T


def by_permutation(X, rng, draws=20):
    """Parallel analysis of pooled and scaled rows, with every column in an order of its own."""
    A = (X - X.mean(axis=0)) / X.std(axis=0)
    drawn = [np.linalg.svd(rng.permuted(A, axis=0), compute_uv=False) for _ in range(draws)]
    above = np.linalg.svd(A, compute_uv=False) > np.quantile(drawn, 0.95, axis=0)
    return int(above.argmin())


@pytest.mark.parametrize(
    ("size", "unequal"),
    every_other(
        [(20, 1000, 2), (200, 50, 5), (100, 900, 5), (1000, 100, 10), (300, 300, 3)],
        ["nothing", "rows", "columns"],
    ),
)
def test_planted_components_are_counted(size, unequal):
    n, d, k = size
    X = planted(np.random.default_rng(0), n, d, k, unequal)
    found = FederatedPCA("auto", random_state=0).fit(np.array_split(X, 3)).n_components_
    assert abs(found - k) <= 2
    assert found == k or unequal != "nothing"


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine, load_digits])
def test_real_tables_keep_as_many_as_permutations_of_pooled_rows(load):
    X = load().data
    X = X[:, X.std(axis=0) > 0]
    wanted = by_permutation(X, np.random.default_rng(0))
    for solver in ("covariance", "lanczos", "merge"):
        model = FederatedPCA("auto", scale=True, solver=solver, random_state=0)
        found = model.fit(np.array_split(X, 4)).n_components_
        assert abs(found - wanted) <= 0.3 * wanted


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(range(3)))
def test_the_noisiest_column_is_not_counted_after_the_components(seed):
    X = planted(np.random.default_rng(seed), 800, 400, 5, "columns")
    assert FederatedPCA("auto", random_state=0).fit(np.array_split(X, 3)).n_components_ == 5


@pytest.mark.parametrize("seed", first_of(range(3)))
def test_a_component_that_is_large_in_a_few_rows_hides_no_others(seed):
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((60, 5)) * [1.5, 0.5, 0.5, 0.5, 0.5]
    scores[:, 0] = 1.5 * rng.standard_t(1.5, 60).clip(-6, 6)
    X = rng.standard_normal((60, 1500)) + scores @ rng.standard_normal((5, 1500))
    wanted = by_permutation(X, rng)
    assert wanted > 1
    model = FederatedPCA("auto", scale=True, random_state=0).fit(np.array_split(X, 3))
    assert model.n_components_ == wanted


STRONG = pytest.mark.parametrize("strongest", [5, 30, 1000])


@STRONG
@pytest.mark.parametrize("solver", ["covariance", "lanczos", "merge"])
def test_a_component_with_nearly_all_of_the_variance_hides_no_others(solver, strongest):
    X = beside_a_strong_one(strongest)
    model = FederatedPCA("auto", solver=solver, random_state=0).fit(np.array_split(X, 3))
    assert model.n_components_ == 4


@STRONG
def test_a_stream_finds_components_beside_one_with_nearly_all_of_the_variance(strongest):
    assert StreamingPCA(rank="auto").fit(beside_a_strong_one(strongest, n=3000)).n_components_ == 4


def beside_a_strong_one(strongest, n=300):
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((size, 4)))[0] for size in (n, 40))
    edge = np.sqrt(n) + np.sqrt(40)
    return rng.standard_normal((n, 40)) + (U * [4 * strongest, 4, 4, 4] * edge) @ V.T


@pytest.mark.parametrize("solver", ["covariance", "lanczos", "tsqr", "merge"])
def test_rounding_beside_exact_components_is_no_component(solver):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((80, 2)) * [1e6, 1] @ rng.standard_normal((2, 9))
    model = FederatedPCA("auto", solver=solver, random_state=0).fit(np.array_split(X, 3))
    assert model.n_components_ <= 2


@pytest.mark.parametrize(
    "solver", ["lanczos", "covariance", "subspace-iteration", "local-power", "tsqr"]
)
def test_noise_alone_has_no_component_however_unequal_the_rows_are(solver):
    for seed in (1, 5):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((50, 30)) * np.exp(0.7 * rng.standard_normal((50, 1)))
        with pytest.warns(UserWarning, match="found no component above the noise, and keeps 1"):
            FederatedPCA("auto", solver=solver, random_state=0).fit(np.array_split(X, 2))


def test_a_few_extreme_entries_hide_no_components_that_are_smaller():
    rng = np.random.default_rng(0)
    X = planted(rng, 300, 40, 4, "nothing")
    X[7, 3] += 1.2 * np.linalg.norm(X, 2)  # larger than all but the first component
    found = FederatedPCA("auto", random_state=0).fit(np.array_split(X, 3)).n_components_
    assert found == 5


def test_a_solver_that_does_not_pass_its_vectors_is_told_so():
    X = planted(np.random.default_rng(0), 90, 8, 2, "")

    def program(fed, start):
        common = common_features(fed)
        moments = ask_moments(fed, common, center=True, scale=False)
        energy = standardize_sites(fed, moments, 1)
        sign_flips.SignFlips(fed)(Spectrum(np.array([energy]), energy, 90, 8))

    with pytest.raises(FedpcaError, match="must pass the components' vectors to the rule"):
        Federation.local(np.array_split(X, 3)).run(program, identity={})


def test_blocks_count_like_triangles(monkeypatch):
    X = planted(np.random.default_rng(1), 300, 60, 12, "rows")
    sites = np.array_split(X, 4)
    by_triangles = FederatedPCA("auto", solver="lanczos", random_state=0).fit(sites)
    monkeypatch.setattr(sign_flips, "triangle_is_cheaper", lambda n, d, p: False)
    by_blocks = FederatedPCA("auto", solver="lanczos", random_state=0).fit(sites)
    asked = {entry["question"] for entry in by_blocks.run_.history}
    assert "flipped_product" in asked
    assert "flipped_triangles" not in asked
    assert by_blocks.n_components_ == by_triangles.n_components_ == 12


def test_flips_are_the_same_for_the_same_seed_and_any_order_of_sites():
    parts = np.array_split(planted(np.random.default_rng(2), 90, 8, 2, ""), 3)
    rows = dict(zip("abc", parts, strict=True))
    first = FederatedPCA("auto", random_state=0).fit(rows)
    again = FederatedPCA("auto", random_state=0).fit(rows)
    assert first.components_.tobytes() == again.components_.tobytes()
    turned = FederatedPCA("auto", random_state=0).fit(dict(reversed(rows.items())))
    assert turned.n_components_ == first.n_components_ == 2


def test_nothing_in_common_is_said():
    X = np.random.default_rng(3).standard_normal((200, 12)) * np.geomspace(1, 100, 12)
    with pytest.warns(UserWarning, match="found no component above the noise, and keeps 1"):
        model = FederatedPCA("auto", random_state=0).fit(np.array_split(X, 2))
    assert model.n_components_ == 1


def test_a_rule_without_a_floor_says_so():
    """Real noise is not white, so that the Marchenko-Pastur edge sinks with every component."""
    X = load_breast_cancer().data
    with pytest.warns(UserWarning, match="'mp' found no noise floor, and keeps 29 of at most 30"):
        FederatedPCA("mp", scale=True).fit(np.array_split(X, 3))


def test_rows_of_zeros_have_one_component():
    assert FederatedPCA("auto").fit([np.zeros((5, 3))] * 2).n_components_ == 1


class TestSecret:
    """What the flips would tell if the coordinator knew the signs, and that it does not."""

    rows = np.random.default_rng(4).standard_normal((12, 4))
    rows += 3 * rows[:, :1] @ np.ones((1, 4))  # one component, for the flips to confirm

    def listen(self, *, in_process):
        """All that a site with these rows answers to one run, and the site."""
        engine = LocalEngine([Site(self.rows, name="a"), Site(-self.rows, name="b")])
        site = engine.sites["a"]
        site.is_in_process = in_process
        heard = []
        answer = site.answer
        site.answer = lambda request, **more: heard.append(answer(request, **more)) or heard[-1]
        FederatedPCA("auto", solver="covariance", random_state=0).fit(Federation(engine))
        return site, {m.header["question"]: m.arrays for m in heard}

    def solve(self, words, triangles):
        """Solve for the products of two entries of each row, from as many flips as rows."""
        n, d = self.rows.shape
        signs = []
        for flip in range(len(triangles)):
            bits = np.random.default_rng([*words, flip, 0]).bytes(-(-n * d // 8))
            unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), count=n * d)
            signs.append(np.where(unpacked.reshape(n, d), 1.0, -1.0))
        signs, grams = np.array(signs), np.array([unpack_triangle(t) for t in triangles])
        return np.linalg.lstsq(signs[:, :, 0] * signs[:, :, 1], grams[:, 0, 1], rcond=None)[0]

    def test_known_signs_give_single_rows_away(self):
        site, heard = self.listen(in_process=True)
        products = self.solve(
            site.recall(FlipSecret).words.tolist(), heard["flipped_triangles"]["triangles"]
        )
        # both sites have the same mean of zero, up to sign, so rows are centered as they are
        np.testing.assert_allclose(products, self.rows[:, 0] * self.rows[:, 1], atol=1e-9)

    def test_signs_of_another_process_are_not_those_of_the_seed(self):
        site, heard = self.listen(in_process=False)
        ours, _ = self.listen(in_process=True)
        guessed = ours.recall(FlipSecret).words.tolist()
        assert site.recall(FlipSecret).words.tolist() != guessed
        other, _ = self.listen(in_process=False)
        assert site.recall(FlipSecret).words.tolist() != other.recall(FlipSecret).words.tolist()
        products = self.solve(guessed, heard["flipped_triangles"]["triangles"])
        truth = self.rows[:, 0] * self.rows[:, 1]
        assert np.abs(np.corrcoef(products, truth)[0, 1]) < 0.9

    @pytest.mark.parametrize("asked", [0, 21, 10**6])
    def test_a_site_flips_no_more_often_than_needed(self, asked):
        def program(fed, start):
            fed.sum(sign_flips.draw_signs, seed=np.int64(0), removed=np.empty((4, 0)))
            fed.sum(sign_flips.flipped_triangles, n_flips=np.int64(asked))

        with pytest.raises(FedpcaError, match="must be from 1 to 20"):
            Federation.local([self.rows]).run(program, identity={})

    @pytest.mark.parametrize(("n", "k", "least"), [(59, 0, 60), (100, 51, 102)])
    def test_a_site_with_a_policy_refuses_few_rows_for_what_is_removed(self, n, k, least):
        rows, removed = np.random.default_rng(0).standard_normal((n, 120)), np.eye(120, k)
        site = Site(rows, name="a", policy=ALLOWED)
        with pytest.raises(PolicyRefused, match=f"fewer than {least} rows"):
            sign_flips.draw_signs(site, seed=np.int64(0), removed=removed)

    def test_a_site_with_a_policy_removes_no_more_than_half_of_all_directions(self):
        site = Site(np.random.default_rng(0).standard_normal((200, 9)), name="a", policy=ALLOWED)
        with pytest.raises(PolicyRefused, match=r"5 columns.*at most half of 9"):
            sign_flips.draw_signs(site, seed=np.int64(0), removed=np.eye(9, 5))

    def test_signs_are_new_for_each_set_of_directions(self):
        triangles = []

        def program(fed, start):
            moments = ask_moments(fed, common_features(fed), center=True, scale=False)
            standardize_sites(fed, moments, 1)
            for seed in (0, 1):
                removed = np.empty((4, 0))
                fed.sum(sign_flips.draw_signs, seed=np.int64(seed), removed=removed)
                answer = fed.sum(sign_flips.flipped_triangles, n_flips=np.int64(5))
                triangles.append(answer["triangles"])

        Federation.local([self.rows]).run(program, identity={})
        first, second = triangles
        diagonal = [0, 2, 5, 9]
        np.testing.assert_allclose(first[:, diagonal], second[:, diagonal])
        assert (np.delete(first, diagonal, 1) != np.delete(second, diagonal, 1)).mean() > 0.5

    def test_a_run_that_goes_on_has_the_same_signs(self, tmp_path):
        X = planted(np.random.default_rng(5), 90, 8, 2, "rows")
        whole = FederatedPCA("auto", random_state=0)
        whole.fit(Federation.local(np.array_split(X, 3), journal=tmp_path / "a.journal"))

        class Stopped(Exception):
            pass

        def stop(entry):
            if entry["question"] == "flipped_triangles":
                raise Stopped

        def federation(**more):
            sites = np.array_split(X, 3)
            return Federation.local(sites, journal=tmp_path / "b.journal", **more)

        with pytest.raises(Stopped):
            FederatedPCA("auto", random_state=0).fit(federation(on_round=stop))
        resumed = FederatedPCA("auto", random_state=0).fit(federation())
        assert resumed.components_.tobytes() == whole.components_.tobytes()


@pytest.mark.parametrize("shape", first_of([(30, 400), (400, 30), (900, 800), (3000, 1500)], 3))
def test_the_floor_without_rows_is_that_of_unrelated_columns(shape):
    n, d = shape
    rng = np.random.default_rng(6)
    A = rng.standard_normal((n, d)) * rng.uniform(0.5, 2, d)
    A -= A.mean(axis=0)
    gram = A @ A.T if n < d else A.T @ A
    values = np.linalg.eigvalsh(gram)[::-1][:8]
    floor = noise_floor(n, (A**2).sum(axis=0), 8)
    assert (values < 1.03 * floor).all()
    assert (values > 0.85 * floor).all()
    assert (np.diff(floor) <= 0).all()


def test_values_above_their_floor_are_counted_in_order():
    floor = np.array([3.0, 2.0, 1.0])
    assert count_above(np.array([4.0, 1.5, 1.2]), floor) == 1
    assert count_above(np.array([2.0, 1.9]), floor) == 0
    assert count_above(np.array([4.0, 3.0]), floor) is None
    assert count_above(np.array([4.0, 3.0, 2.0, 0.1]), floor) is None
