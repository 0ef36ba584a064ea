"""A few rows are not shown in so many directions that it can be told which directions are rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.audit.liar import Found, Liar, Refused, score
from fedpca.errors import PolicyRefused
from fedpca.linalg.dense import unpack_triangle
from fedpca.rows.gaps import MISSING
from fedpca.site.policy import JOINING
from fedpca.site.store import ROWS
from fedpca.solvers.common_features import names_to_bytes

N, D = 60, 500
NO_LIMIT = replace(JOINING, min_rows_per_direction=0)
N_STEPS = 200  # of independent component analysis


def flags():
    """Return flags that at least six rows have, and that at least six rows lack."""
    rng = np.random.default_rng(0)
    found = np.zeros((N, 0))
    while found.shape[1] < D:
        more = (rng.random((N, D)) < 0.1).astype(float)
        found = np.hstack([found, more[:, more.sum(axis=0) >= 6]])
    return found[:, :D]


def independent_components(space):
    """Return the least normal directions in the span of the columns, by FastICA (Hyvarinen, 1999)."""
    U, s, _ = np.linalg.svd(space - space.mean(axis=0), full_matrices=False)
    X = U[:, s > 1e-9 * s[0]] * np.sqrt(len(U))
    B = np.linalg.qr(np.random.default_rng(0).normal(size=(X.shape[1], X.shape[1])))[0]
    for _ in range(N_STEPS):
        G = np.tanh(X @ B)
        left, _, right = np.linalg.svd(X.T @ G / len(X) - B * (1 - G**2).mean(axis=0))
        B = left @ right
    return X @ B


def as_flags(components):
    """Return each component, of either sign, as zeros and ones on both sides of its largest gap."""
    found = []
    for each in (*components.T, *-components.T):
        ordered = np.sort(each)
        i = int(np.argmax(np.diff(ordered)))
        found.append((each > ordered[i : i + 2].mean()).astype(float))
    return np.array(found)


def recovered(space, mean, rows):
    """Return how many rows are found in a space that contains combinations of them."""
    claims = as_flags(independent_components(np.column_stack([space, mean])))
    return sum(score(Found(each[None]), rows).records for each in claims)


def begin(liar, solver, n_components=8):
    liar.begin("FederatedPCA", solver=solver, n_components=n_components)
    liar.ask_one("column_names")
    missing = np.int64(MISSING.index("error"))
    answer = liar.ask("count_and_sum", features=names_to_bytes(None), missing=missing)
    return answer["total"] / answer["n"]


def from_covariance(site):
    """Return the space of the rows from one honest run, and their mean."""
    liar = Liar({site.name: site.answer_bytes}, ["east", "south"])
    mean = begin(liar, "covariance")
    answer = liar.ask("covariance_triangle", mean=mean, scale=np.ones(D))
    values, vectors = np.linalg.eigh(unpack_triangle(answer["triangle"]))
    return vectors[:, values > 1e-9 * values[-1]], mean


def from_products(site, n_runs=8, n_columns=8):
    """Return products with new directions in each of several runs, and the rows' mean."""
    rng, found = np.random.default_rng(0), []
    liar = Liar({site.name: site.answer_bytes}, ["east", "south"])
    for _ in range(n_runs):
        mean = begin(liar, "lanczos")
        liar.ask("standardize", mean=mean, scale=np.ones(D), n_products=np.int64(n_columns))
        Z = np.linalg.qr(rng.normal(size=(D, n_columns)))[0]
        found.append(liar.ask("covariance_product", Z=Z)["Y"])
    return np.hstack(found), mean


@pytest.mark.parametrize("attack", [from_covariance, from_products])
def test_flags_of_few_rows_stay_hidden_from_independent_component_analysis(attack):
    rows = flags()
    assert recovered(*attack(Site(rows, name="north", policy=NO_LIMIT)), rows) >= 0.9 * N
    with pytest.raises(Refused, match=r"one direction for every 2 rows.*min_rows_per_direction=2"):
        attack(Site(rows, name="north", policy=JOINING))
    # half as many directions as rows show no row
    space, mean = from_products(Site(rows, name="north", policy=NO_LIMIT), n_runs=3)
    assert recovered(space, mean, rows) == 0


class Ward:
    """A site with few rows and many columns in a file."""

    def __init__(self, folder, n=N, d=40):
        self.folder, self.path = folder, folder / "rows.csv"
        self.rows = np.random.default_rng(3).normal(size=(4 * n, d))
        self.write(n)
        self.liar = Liar({"north": lambda message: self.site.answer_bytes(message)}, ["south"])
        self.start()

    def write(self, n):
        header = ",".join(f"c{i}" for i in range(self.rows.shape[1]))
        np.savetxt(self.path, self.rows[:n], "%.17g", ",", header=header, comments="")

    def start(self):
        self.site = Site(self.path, name="north", policy=Policy(), store=self.folder / "store")


def product(ward, seed, n_columns):
    liar = ward.liar
    begin(liar, "lanczos", n_columns)
    d = ward.rows.shape[1]
    liar.ask("standardize", mean=np.zeros(d), scale=np.ones(d), n_products=np.int64(n_columns))
    Z = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, n_columns)))[0]
    liar.ask("covariance_product", Z=Z)
    liar.go_back()
    return liar.ask("covariance_product", Z=Z)["Y"]  # as if the answer had been lost


def test_directions_count_over_runs_and_restarts_and_repeated_answers_do_not(tmp_path):
    ward = Ward(tmp_path)
    first = product(ward, 0, 10)
    product(ward, 1, 10)
    ward.start()
    assert np.array_equal(product(ward, 0, 10), first)
    product(ward, 2, 10)
    with pytest.raises(
        Refused, match=r"one direction for every 2 rows.*north-.*\.rows in its folder"
    ):
        product(ward, 3, 1)
    assert np.array_equal(product(ward, 1, 10), product(ward, 1, 10))


def test_new_rows_allow_new_directions_and_a_deleted_record_allows_all(tmp_path):
    ward = Ward(tmp_path)
    for seed in range(3):
        product(ward, seed, 10)
    ward.write(N + 8)
    product(ward, 3, 4)
    with pytest.raises(Refused, match="one direction for every 2 rows"):
        product(ward, 4, 1)
    ward.site.file(ROWS).unlink()
    product(ward, 4, 10)
    ward.write(2 * 40)  # enough rows for all directions
    for seed in range(10):
        product(ward, seed, 20)


def test_a_site_without_files_counts_until_it_ends():
    rows = np.random.default_rng(3).normal(size=(60, 40))
    sites = [Site(rows, name="north", policy=Policy()), Site(rows[::-1] * 2, name="south")]
    model = FederatedPCA(2, solver="covariance", random_state=0)
    with pytest.raises(PolicyRefused, match=r"min_rows_per_direction=2.*fewer components"):
        model.fit(Federation.local(sites))
    narrow = [rows[:, :30], rows[::-1, :30] * 2]
    named = [Site(each, name=f"s{i}", policy=Policy()) for i, each in enumerate(narrow)]
    for _ in range(3):
        assert model.fit(Federation.local(named)).n_samples_ == 120


def test_directions_that_were_free_count_once_columns_are_added(tmp_path):
    rng, path = np.random.default_rng(4), tmp_path / "rows.npy"
    rows = rng.normal(size=(N, 50))
    sites = {}
    liar = Liar({"north": lambda request: sites["north"].answer_bytes(request)}, ["east", "south"])
    for d in (N // 2, 50):  # all directions of the first table may be shown, but not of the second
        np.save(path, rows[:, :d])
        sites["north"] = Site(path, name="north", policy=JOINING, store=tmp_path / "store")
        begin(liar, "lanczos")
        asked = {"mean": np.zeros(d), "scale": np.ones(d), "n_products": np.int64(30)}
        liar.ask("standardize", **asked)
        for i in range(0, d, 8) if d == N // 2 else ():
            liar.ask("covariance_product", Z=np.eye(d)[:, i : i + 8])
    with pytest.raises(Refused, match="min_rows_per_direction=2"):
        liar.ask("covariance_product", Z=np.eye(50, 1))


# parts of the rows ------------------------------------------------------------------------------------

N_PART = 12  # rows that differences are about, fewer than columns


def whole(ward, missing="error"):
    """Ask for all products of all columns in an honest run."""
    liar, d = ward.liar, ward.rows.shape[1]
    liar.begin("FederatedPCA", solver="covariance", n_components=2, missing=missing)
    liar.ask_one("column_names")
    position = np.int64(MISSING.index(missing))
    liar.ask("count_and_sum", features=names_to_bytes(None), missing=position)
    return liar.ask("covariance_triangle", mean=np.zeros(d), scale=np.ones(d))["triangle"]


def test_rows_that_change_show_no_more_directions_than_they_have_rows_for(tmp_path):
    ward = Ward(tmp_path, n=100)
    whole(ward)
    ward.write(100 + N_PART)
    ward.start()
    product(ward, 0, N_PART // 2)
    for restart in (ward.start, lambda: ward.write(100 + 2 * N_PART)):
        with pytest.raises(Refused, match=r"the rows that have changed .*=2.*\.rows in its folder"):
            whole(ward)
        restart()
    product(ward, 1, N_PART // 2)
    ward.write(200 + 2 * N_PART)
    ward.start()
    assert whole(ward).size == 40 * 41 // 2
    whole(ward)


def test_changes_that_no_answer_tells_apart_count_as_one(tmp_path):
    ward = Ward(tmp_path, n=100)
    whole(ward)
    ward.write(180)
    begin(ward.liar, "covariance")
    for n in (100 + N_PART, 140, 160):  # no answer has shown the rows in between
        ward.write(n)
        ward.start()
        with pytest.raises(Refused, match="wait until 80 more rows have changed"):
            whole(ward)
    ward.write(180)
    whole(ward)


def test_rows_with_gaps_show_few_directions_to_runs_of_both_kinds(tmp_path):
    ward = Ward(tmp_path, n=100)
    ward.rows[:N_PART, 0] = np.nan
    ward.write(100)
    ward.start()
    assert np.array_equal(whole(ward, "mean"), whole(ward, "mean"))
    with pytest.raises(Refused, match=r"the rows with gaps together .*min_rows_per_direction=2"):
        whole(ward, "drop")
    (ward.folder / "other").mkdir()
    other = Ward(ward.folder / "other", n=400)
    other.rows = np.random.default_rng(4).normal(size=(400, 40))
    other.rows[: 2 * 40, 0] = np.nan
    other.write(400)
    other.start()
    whole(other, "mean")
    whole(other, "drop")


def test_a_column_with_few_values_has_few_products(tmp_path):
    ward = Ward(tmp_path, n=100)
    ward.rows[45:100, 0] = np.nan
    ward.write(100)
    ward.start()
    with pytest.raises(Refused, match="the rows with values in two columns together"):
        whole(ward, "mean")


def test_two_panels_that_few_rows_share_have_few_products(tmp_path):
    ward = Ward(tmp_path, n=240)
    ward.rows[:114, :20] = ward.rows[126:240, 20:] = np.nan
    ward.write(240)
    ward.start()
    with pytest.raises(Refused, match="the rows with values in two columns together"):
        whole(ward, "mean")


def test_few_columns_of_a_few_changed_rows_may_be_shown(tmp_path):
    ward = Ward(tmp_path, n=100, d=4)
    whole(ward)
    ward.write(105)  # as many rows as a sum must cover
    whole(ward)


def test_rows_with_little_weight_count_for_little():
    rows = flags()
    others = np.random.default_rng(1).random((660, D)) < 0.5
    light = np.vstack([rows, others])
    weights = np.where(np.arange(len(light)) < N, 1.0, 1e-9)
    for weight, is_refused in ((weights, True), (np.full(len(light), 2.0), False)):
        site = Site(light, name="north", policy=JOINING, weight=weight)
        liar = Liar({"north": site.answer_bytes}, ["east"])
        begin(liar, "lanczos", n_components=N)
        liar.ask("standardize", mean=np.zeros(D), scale=np.ones(D), n_products=np.int64(N))
        ask = partial(liar.ask, "covariance_product", Z=np.eye(D, N))
        if is_refused:
            with pytest.raises(Refused, match="one direction for every 2 rows"):
                ask()
        else:
            assert ask()["Y"].shape == (D, N)
