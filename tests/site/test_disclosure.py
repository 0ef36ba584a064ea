"""No number that stands on a few rows leaves a site, whichever way it is asked for."""

from __future__ import annotations

import stat
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.audit import lying_sums
from fedpca.audit.liar import Found, Liar, Refused, score
from fedpca.audit.lying import ATTACKS
from fedpca.errors import InputError, PolicyRefused
from fedpca.rows import in_memory
from fedpca.rows.gaps import DROP, ERROR, MEAN
from fedpca.rows.hashes import RowHasher, changes
from fedpca.rows.in_memory import DenseRows, SparseRows, weighted_blocks
from fedpca.rows.rare import look_for_few
from fedpca.rows.weighted import WeightedRows
from fedpca.site.policy import JOINING
from fedpca.site.store import ROWS
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


def row_hashes(rows, secret):
    hasher = RowHasher(rows, secret)
    for block, weights in weighted_blocks(rows):
        hasher.add(block, weights)
    return hasher.hashes


def n_changed(before, after):
    return max(map(len, changes(np.sort(before), np.sort(after))))


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
    assert fit(rows_of(n), Policy(min_count=1, min_rows_per_direction=0)).n_components_ == 2


@pytest.mark.parametrize("n", [0, 5])
def test_enough_rows_or_none_are_no_secret(n):
    assert fit(rows_of(n), Policy(min_rows_per_direction=0)).n_samples_ == 40 + n


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
    with pytest.raises(PolicyRefused, match=r"in columns 0, gaps are in such rows.*min_count=5"):
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
    with pytest.raises(
        PolicyRefused, match=r"in columns 0, gaps are in such rows.*fewer than 5 rows"
    ):
        fit(rows, missing="mean")
    rows[:5, 0] = rows[:5, 1] = NAN
    assert fit(rows, missing="mean").n_samples_ == 80
    rows[4, 1] = 1.0  # so that only one of the rows without the first value has the second
    with pytest.raises(PolicyRefused, match="in columns 0, 1, gaps are in such rows"):
        fit(rows, missing="mean")


def test_a_flag_that_is_rare_among_complete_rows_is_refused_when_the_others_are_dropped():
    rows = rows_of()
    rows[:, 1] = 0
    rows[:11, 1] = 1
    rows[:5, 2] = NAN
    rows[5:10, 0] = NAN
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
        return self.site.file(ROWS)


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
    for missing in ("drop", "mean"):  # fits that fill with other means show the complete rows too
        with pytest.raises(PolicyRefused, match="min_change=5"):
            hospital.fit(more, missing=missing)
    more = np.vstack([rows[:45], more[41:]])
    assert hospital.fit(more, missing="mean").n_samples_ == 91


def test_deleting_the_record_knowingly_is_the_way_out_and_a_damaged_one_is_refused(tmp_path):
    hospital, rows = Hospital(tmp_path), rows_of(60)
    hospital.fit(rows[:40])
    good = hospital.record.read_bytes()
    for damaged in (b"", good[:30], good[:-1]):
        hospital.record.write_bytes(damaged)
        with pytest.raises(InputError, match=r"\.rows, the site's record of its rows, is damaged"):
            hospital.fit(rows[:41])
    hospital.record.unlink()
    assert hospital.fit(rows[:41]).n_samples_ == 81


def test_unchanged_files_are_hashed_once(tmp_path, monkeypatch):
    from fedpca.site import disclosure

    calls = []

    class Counted(RowHasher):
        def __init__(self, rows, secret):
            calls.append(1)
            super().__init__(rows, secret)

    monkeypatch.setattr(disclosure, "RowHasher", Counted)
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


@pytest.mark.parametrize("missing", ["error", "mean", "drop"])
def test_a_row_with_nearly_all_the_squares_of_a_column_is_refused_by_name(missing):
    rows = rows_of(60)
    if missing != "error":
        rows[:20, 0] = NAN
    rows[30, 2] = 1e4
    other = rows_of(60, seed=1) * [1, 1, 1e3, 1]
    assert fit(rows, missing=missing, other=other).n_components_ == 2
    with pytest.raises(PolicyRefused, match=r"in columns 2, one row has .* max_share=0\.99"):
        fit(rows, Policy(max_share=0.99), missing=missing, other=other)
    rows[:, 2] = np.cbrt(rows[:, 2].clip(-3, 3))
    assert fit(rows, Policy(max_share=0.99), missing=missing, other=other).n_components_ == 2


def test_a_row_that_is_read_from_products_with_an_extreme_value_is_refused():
    rows = rows_of(60)
    rows[7, 0] = 1e10
    for policy in (JOINING, replace(JOINING, max_share=None)):
        liar = Liar({"north": Site(rows, name="north", policy=policy).answer_bytes}, ["south"])
        liar.begin(**ATTACKS["honest run"].plans[0])
        if policy.max_share is not None:
            with pytest.raises(Refused, match="max_share"):
                lying_sums.honest_run(liar)
            continue
        found = lying_sums.honest_run(liar).facts
        claim = found["X'X"][0] / 1e10
        assert score(Found(claim[None]), rows).records == 1


@pytest.mark.filterwarnings("ignore:site 'north' claims")
def test_a_row_with_nearly_all_the_weight_is_refused():
    weights = np.ones(60)
    weights[3] = 1e9
    assert fit(rows_of(60), weight=weights).n_components_ == 2
    with pytest.raises(PolicyRefused, match=r"one row has a larger share of the weight.*max_share"):
        fit(rows_of(60), Policy(max_share=0.99), weight=weights)


@pytest.mark.parametrize("n_few", [1, 3, 8])
def test_where_a_column_that_repeats_another_has_gaps_many_rows_have_each_value(n_few):
    """A fill that equals all values but a few leaves only these rows in a combination of columns."""
    rows = rows_of(200, 6)
    rows[:, 4] = np.arange(200) < 60
    rows[:, 5] = rows[:, 4]
    rows[60 - n_few : 80, 5] = NAN
    other = rows_of(60, 6, seed=1)
    if n_few == 8:
        assert fit(rows, JOINING, missing="mean", other=other).n_components_ == 2
        return
    with pytest.raises(PolicyRefused, match=r"4, 5.*(max_share|min_count)="):
        fit(rows, JOINING, missing="mean", other=other)


@pytest.mark.parametrize("n_few", [1, 4, 5])
def test_a_flag_is_many_rows_own_among_those_with_a_value_in_another_column(n_few):
    """If gaps are filled, the flag's product with the other column is a sum over these rows."""
    rows = rows_of(200, 4)
    rows[:, 3] = np.arange(200) < 60
    rows[: 60 - n_few, 0] = rows[150:, 0] = NAN
    if n_few == 5:
        assert fit(rows, JOINING, missing="mean").n_components_ == 2
        return
    with pytest.raises(PolicyRefused, match=r"columns 3,.*min_count=5"):
        fit(rows, JOINING, missing="mean")


def test_a_gap_is_no_usual_value_of_a_flag_whose_gaps_are_filled():
    rows = rows_of(60, 40)
    rows[:, 3] = np.arange(60) < 4
    rows[25:, 3] = NAN
    with pytest.raises(PolicyRefused, match=r"columns 3,.*min_count=5"):
        fit(rows, JOINING, missing="mean", other=rows_of(60, 40, seed=1))


def test_columns_that_agree_but_for_a_row_are_found_beside_constant_columns():
    def check(rows):
        site = Site(rows, name="north", policy=JOINING)
        site.conversation.gate.disclosure.check(site.rows, ERROR)

    rows = np.column_stack([rows_of(60, 6), np.zeros((60, 30))])
    check(rows)
    rows[:, 5] = rows[:, 4]
    rows[3, 5] += 1
    with pytest.raises(PolicyRefused, match=r"columns 4, 5,.*max_share=0.99"):
        check(rows)


def test_rows_are_read_once_for_all_rules(tmp_path, monkeypatch):
    path = tmp_path / "rows.csv"
    rows = rows_of(300)
    rows[:30, 0] = NAN
    np.savetxt(path, rows, "%.17g", ",", header="a,b,c,d", comments="")
    site = Site(path, name="north", policy=JOINING, store=tmp_path / "store")
    n_read, blocks = [], site.rows.blocks
    monkeypatch.setattr(site.rows, "blocks", lambda: n_read.append(1) or blocks())
    site.look_at_rows()
    assert len(n_read) == 1
    gate = site.conversation.gate
    for _ in range(2):
        gate.disclosure.check(site.rows, MEAN)
        assert len(n_read) == 3  # for values, and for leverages, in a run that fills gaps
