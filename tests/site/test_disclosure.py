"""No number that stands on a few rows leaves a site, whichever way it is asked for."""

from __future__ import annotations

import stat
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.errors import InputError, PolicyRefused
from fedpca.rows import in_memory
from fedpca.rows.gaps import DROP, ERROR, MEAN
from fedpca.rows.in_memory import DenseRows, SparseRows
from fedpca.rows.rare import look_for_few
from fedpca.rows.weighted import WeightedRows
from fedpca.site.disclosure import n_changed, row_hashes
from support import draws

RNG = np.random.default_rng(0)
NAN = float("nan")
SECRET = bytes(32)


def rows_of(n=40, d=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def fit(rows, policy=None, *, missing="error", other=None, **options):
    """Fit a site with a policy and one without."""
    site = Site(rows, name="north", policy=policy or Policy(), **options)
    south = rows_of(seed=1) if other is None else other
    model = FederatedPCA(2, missing=missing, random_state=0)
    return model.fit(Federation.local([site, Site(south, name="south")]))


def brute_force(values, m):
    """The positions of rare columns, by counting every value in every column."""
    rare = []
    for i, column in enumerate(values.T):
        counts = Counter("NaN" if np.isnan(v) else v + 0.0 for v in column)
        most = max(counts.values(), default=0)
        # with m rows, all of which differ, no value is more frequent than another
        if 0 < len(column) - most < m and most > 1:
            rare.append(str(i))
    return rare


@draws(60)
@given(
    n=st.integers(0, 40),
    m=st.integers(2, 8),
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["dense", "sparse", "float32", "weighted"]),
    block=st.integers(1, 50),
)
def test_rare_columns_are_those_that_counting_every_value_finds(n, m, seed, kind, block):
    rng = np.random.default_rng(seed)
    choices = [0.0, -0.0, 1.0, 2.5, NAN, np.inf]
    shares = rng.dirichlet(np.full(len(choices), 0.15), size=6)
    values = np.column_stack([rng.choice(choices, size=n, p=p) for p in shares])
    rows, counts = DenseRows(values), np.ones(n, bool)
    if kind == "sparse":
        rows = SparseRows(sp.csr_array(values))
    elif kind == "float32":
        rows = DenseRows(values.astype(np.float32))
    elif kind == "weighted":
        counts = rng.random(n) < 0.8
        rows = WeightedRows(rows, counts * 2.0)
    before, in_memory.BLOCK_BYTES = in_memory.BLOCK_BYTES, 8 * 6 * block
    try:
        for missing in (ERROR, MEAN, DROP):
            whole = ~np.isnan(values).any(axis=1) if missing == DROP else np.ones(n, bool)
            used = values[counts & whole]
            few = look_for_few(rows, m, missing)
            assert min(few.n_rows, m) == min(len(used), m)
            n_left_out = int((counts & ~whole).sum())
            assert min(few.n_left_out, m) == min(n_left_out, m)
            if len(used) >= m:
                assert few.rare == brute_force(used, m)
    finally:
        in_memory.BLOCK_BYTES = before


def test_measurements_are_looked_at_no_further_than_the_first_block(monkeypatch):
    rows, n_read = DenseRows(rows_of(1000)), []
    monkeypatch.setattr(in_memory, "BLOCK_BYTES", 8 * 4 * 100)
    blocks = rows.blocks
    rows.blocks = lambda: (n_read.append(len(b)) or b for b in blocks())
    assert look_for_few(rows, 5, ERROR).rare == []
    assert n_read == [100]


@pytest.mark.parametrize("n", [1, 4])
def test_a_site_with_few_rows_stays_silent(n):
    with pytest.raises(PolicyRefused, match="fewer usable rows than its policy's min_count=5"):
        fit(rows_of(n))
    with pytest.raises(PolicyRefused, match="min_count=5"):
        fit(rows_of(40), weight=np.arange(40) < n)  # rows with weight zero do not count
    assert fit(rows_of(n), Policy(min_count=1)).n_components_ == 2


@pytest.mark.parametrize("n", [0, 5])
def test_enough_rows_or_none_are_no_secret(n):
    assert fit(rows_of(n)).n_samples_ == 40 + n


@pytest.mark.parametrize("n_flagged", [1, 4])
@pytest.mark.parametrize("usual", [0.0, 1.0])
def test_a_flag_that_few_rows_have_is_refused_by_name(n_flagged, usual):
    rows = rows_of()
    rows[:, 1] = usual
    rows[RNG.choice(40, n_flagged, replace=False), 1] = 1 - usual
    with pytest.raises(
        PolicyRefused, match=r"in columns 1, .*\(its policy's min_count=5\); .*--drop"
    ):
        fit(rows)
    assert fit(rows, Policy(min_count=n_flagged)).n_components_ == 2


def test_a_flag_that_enough_rows_or_none_have_is_answered():
    for n_flagged in (0, 5):
        rows = rows_of()
        rows[:, 1] = 0
        rows[:n_flagged, 1] = 1
        assert fit(rows).n_components_ == 2


def test_a_refusal_contains_no_value():
    rows = rows_of()
    rows[:, 1], rows[7, 1] = 271828.25, 314159.5
    with pytest.raises(PolicyRefused) as refused:
        fit(rows)
    assert "271828" not in str(refused.value)
    assert "314159" not in str(refused.value)


def test_a_column_with_few_values_present_is_refused_by_name():
    rows = rows_of()
    rows[3:, 2] = NAN
    with pytest.raises(PolicyRefused, match="in columns 2, "):
        fit(rows, missing="mean")
    rows[:5, 2] = range(5)
    assert fit(rows, missing="mean").n_components_ == 2


def test_rows_left_out_for_gaps_are_many_or_none():
    rows = rows_of()
    rows[0, 0] = NAN
    with pytest.raises(PolicyRefused, match="missing='drop' would leave out fewer rows"):
        fit(rows, missing="drop")
    rows[:5, 0] = NAN
    assert fit(rows, missing="mean").n_samples_ == 80
    assert fit(rows, missing="drop").n_samples_ == 75
    rows[:36, 0] = NAN
    with pytest.raises(PolicyRefused, match="fewer usable rows"):
        fit(rows, missing="drop")


def test_gaps_that_are_filled_are_in_many_rows_that_have_other_values_or_in_none():
    rows = rows_of()
    rows[0, 0] = NAN
    with pytest.raises(PolicyRefused, match="in columns 0, fewer than 5 rows have a gap"):
        fit(rows, missing="mean")
    rows[:5, 0] = rows[:5, 1] = NAN
    assert fit(rows, missing="mean").n_samples_ == 80
    rows[4, 1] = 1.0  # so that only one of the rows without the first value has the second
    with pytest.raises(PolicyRefused, match="in columns 0, 1, fewer than 5 rows"):
        fit(rows, missing="mean")


def test_a_flag_that_is_rare_among_complete_rows_is_refused_when_the_others_are_dropped():
    rows = rows_of()
    rows[:, 1] = 0
    rows[:10, 1] = 1
    rows[:9, 2] = NAN
    assert fit(rows, missing="mean").n_components_ == 2
    with pytest.raises(PolicyRefused, match="in columns 1, "):
        fit(rows, missing="drop")


def test_an_open_policy_holds_its_min_count_too():
    policy = Policy(allow=("any",), gather=True)
    with pytest.raises(PolicyRefused, match="min_count=5"):
        fit(rows_of(3), policy)


class Hospital:
    """A file whose rows change between runs, at a site with a folder."""

    def __init__(self, folder, **rules):
        self.folder, self.rules = folder, rules
        self.path = folder / "rows.csv"

    def fit(self, rows, *, missing="error", new=False, names="abcd"):
        table = rows[:, ["abcd".index(name) for name in names]]
        np.savetxt(self.path, table, "%.17g", ",", header=",".join(names), comments="")
        store = self.folder / "store"
        if new or not hasattr(self, "site"):
            self.site = Site(self.path, name="north", policy=Policy(**self.rules), store=store)
        south = self.folder / "south.csv"
        np.savetxt(south, rows_of(seed=1), "%.17g", ",", header="a,b,c,d", comments="")
        sites = [self.site, Site(south, name="south")]
        return FederatedPCA(2, missing=missing, random_state=0).fit(Federation.local(sites))

    @property
    def record(self):
        return self.site.file(".rows")


def test_a_patient_who_was_added_between_two_runs_stays_hidden(tmp_path):
    hospital, rows = Hospital(tmp_path), rows_of(60)
    hospital.fit(rows[:40])
    for changed in (rows[:41], rows[:44], rows[1:40], rows[4:44]):
        with pytest.raises(PolicyRefused, match=r"min_change=5.*north-.*\.rows in its folder"):
            hospital.fit(changed)
    for new in (False, True):  # a site that was started anew knows it too
        with pytest.raises(PolicyRefused, match="min_change=5"):
            hospital.fit(rows[:41], new=new)
    assert hospital.fit(rows[:40]).n_samples_ == 80
    assert hospital.fit(rows[:45]).n_samples_ == 85
    with pytest.raises(PolicyRefused, match="min_change=5"):
        hospital.fit(rows[:46])
    assert stat.S_IMODE(hospital.record.stat().st_mode) == 0o600


def test_rows_in_another_order_have_not_changed(tmp_path):
    hospital, rows = Hospital(tmp_path), rows_of(40)
    hospital.fit(rows)
    before = hospital.record.read_bytes()
    hospital.fit(rows[::-1])
    hospital.fit(rows, names="bdca")
    assert hospital.record.read_bytes() == before
    with pytest.raises(PolicyRefused, match="min_change=5"):
        hospital.fit(np.vstack([rows, rows[:1]]))  # a second equal row is a row more
    assert hospital.record.read_bytes() == before


def test_the_rule_can_be_wider_or_off(tmp_path):
    rows = rows_of(60)
    for name, rules, refused, passes in (
        ("wide", {"min_change": 9}, 48, 49),
        ("off", {"min_change": 1}, None, 41),
        ("with min_count off", {"min_count": 1}, None, 41),
        ("alone", {"min_count": 1, "min_change": 3}, 42, 43),
    ):
        (tmp_path / name).mkdir()
        hospital = Hospital(tmp_path / name, **rules)
        hospital.fit(rows[:40])
        if refused is not None:
            with pytest.raises(PolicyRefused, match="min_change="):
                hospital.fit(rows[:refused])
        assert hospital.fit(rows[:passes]).n_samples_ == 40 + passes


def test_complete_rows_are_compared_with_what_a_run_on_complete_rows_used(tmp_path):
    hospital, rows = Hospital(tmp_path), rows_of(60)
    rows[:6, 0] = NAN
    hospital.fit(rows[:40], missing="drop")
    hospital.fit(rows[:40], missing="mean")
    more = np.vstack([rows[:41], np.where(np.arange(4) == 0, NAN, rows_of(6, seed=5))])
    assert (~np.isnan(more).any(axis=1)).sum() == 35  # one complete row more
    with pytest.raises(PolicyRefused, match="min_change=5"):
        hospital.fit(more, missing="drop")
    assert hospital.fit(more, missing="mean").n_samples_ == 87


def test_deleting_the_record_knowingly_is_the_way_out_and_a_damaged_one_is_refused(tmp_path):
    hospital, rows = Hospital(tmp_path), rows_of(60)
    hospital.fit(rows[:40])
    good = hospital.record.read_bytes()
    for damaged in (b"", good[:30], good[:-1]):
        hospital.record.write_bytes(damaged)
        with pytest.raises(InputError, match=r"\.rows, the record .* is damaged"):
            hospital.fit(rows[:41])
    hospital.record.unlink()
    assert hospital.fit(rows[:41]).n_samples_ == 81


def test_unchanged_files_are_hashed_once(tmp_path, monkeypatch):
    from fedpca.site import disclosure

    calls = []
    real = disclosure.row_hashes
    monkeypatch.setattr(disclosure, "row_hashes", lambda *a, **k: calls.append(1) or real(*a, **k))
    site = Hospital(tmp_path)
    site.fit(rows_of(40))
    assert calls == [1]
    sites = [site.site, Site(tmp_path / "south.csv", name="south")]
    FederatedPCA(2, random_state=0).fit(Federation.local(sites))
    assert calls == [1]
    site.fit(rows_of(40))  # writes the file again
    assert calls == [1, 1]


def test_a_record_that_is_deleted_while_the_site_runs_is_written_anew(tmp_path):
    hospital, rows = Hospital(tmp_path), rows_of(60)
    hospital.fit(rows[:40])
    hospital.site.look_at_rows()
    hospital.record.unlink()
    hospital.fit(rows[:41])
    with pytest.raises(PolicyRefused, match="min_change=5"):
        hospital.fit(rows[:42])
    with pytest.raises(PolicyRefused, match="min_change=5"):
        hospital.fit(rows[:42], new=True)


def test_rows_that_were_looked_at_before_are_compared_with_the_record(tmp_path):
    hospital, rows = Hospital(tmp_path), rows_of(60)
    hospital.fit(rows[:40])
    np.savetxt(hospital.path, rows[:41], "%.17g", ",", header="a,b,c,d", comments="")
    site = Site(hospital.path, name="north", policy=Policy(), store=tmp_path / "store")
    site.look_at_rows()
    with pytest.raises(PolicyRefused, match="min_change=5"):
        FederatedPCA(2).fit(Federation.local([site, Site(tmp_path / "south.csv", name="south")]))


def test_hashes_tell_rows_apart_and_nothing_else():
    rows = rows_of(30)
    rows[0, 0], rows[1, 0] = 0.0, NAN
    other = rows.copy()
    other[0, 0] = -0.0
    other[1, 0] = -np.float64(NAN)
    same = row_hashes(DenseRows(rows), SECRET)
    assert len(set(same)) == 30
    assert np.array_equal(same, row_hashes(DenseRows(other), SECRET))
    assert not np.isin(same, row_hashes(DenseRows(rows), b"x" * 32)).any()
    sparse = sp.csr_array(np.where(rows > 0, rows, 0))
    with_zeros = sparse.copy()
    with_zeros.data[3] = 0
    zeroed = with_zeros.copy()
    zeroed.eliminate_zeros()
    one, two = (row_hashes(SparseRows(m), SECRET) for m in (with_zeros, zeroed))
    assert np.array_equal(one, two)
    assert n_changed(one, row_hashes(SparseRows(sparse), SECRET)) == 1
    weighted = row_hashes(WeightedRows(DenseRows(rows), np.arange(30.0)), SECRET)
    assert len(weighted) == 29


@draws(40)
@given(
    before=st.lists(st.integers(0, 5), max_size=12), after=st.lists(st.integers(0, 5), max_size=12)
)
def test_changes_are_counted_as_multisets(before, after):
    removed, added = Counter(before) - Counter(after), Counter(after) - Counter(before)
    assert n_changed(np.sort(np.array(before, np.int64)), np.array(after, np.int64)) == max(
        removed.total(), added.total()
    )
