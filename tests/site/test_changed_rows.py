"""A site that goes on while its files change: it follows them between runs, and not within one."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.errors import InputError, PolicyRefused, QuorumLost
from fedpca.protocol.message import compose, encode
from fedpca.protocol.question import question
from fedpca.rows.formats.files import BED, ENDINGS
from fedpca.site import source
from fedpca.site.answer_log import AnswerLog
from fedpca.solvers.common_features import column_names
from fedpca.testing import ScriptedEngine
from support import NAMES, write_rows

RNG = np.random.default_rng(7)
OLD, NEW, LONGER, SHORT = (RNG.normal(size=(n, 4)) for n in (40, 40, 90, 3))
OTHERS = RNG.normal(size=(50, 4))


class Stopped(Exception):
    pass


def far(sites, **options):
    """An engine over sites whose rows the coordinator cannot look at."""
    return ScriptedEngine(sites, hides_rows=True, **options)


def replace(folder, kind, values):
    """Other values in the same file, as by `mv`; its time of change is another one for sure."""
    path = write_rows(folder, kind, values)
    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(later, later))


def others():
    import pyarrow as pa

    return pa.table(dict(zip(NAMES, OTHERS.T, strict=True)))


def sites_of(path, **options):
    named = path.suffix not in (".npy", ".npz", ".h5", ".hdf5", ".zarr")
    return {"a": Site(path, name="a", **options), "b": others() if named else OTHERS}


def stopping_after(rounds):
    def on_round(entry):
        if entry["round"] == rounds:
            raise Stopped

    return on_round


def fit(engine, **options):
    return FederatedPCA(2, scale=True, random_state=0).fit(Federation(engine, **options))


@pytest.mark.parametrize("kind", [".npy", ".parquet", ".csv", ".npz"])
def test_rows_that_change_within_a_run_are_refused(kind, tmp_path):
    engine = far(sites_of(write_rows(tmp_path, kind, OLD), store=tmp_path / "a"))
    journal = tmp_path / "j"
    with pytest.raises(Stopped):
        fit(engine, journal=journal, on_round=stopping_after(2))
    replace(tmp_path, kind, NEW)
    with pytest.raises(InputError, match=r"site 'a'.*the rows have changed since the run began"):
        fit(engine, journal=journal)


@pytest.mark.parametrize("kind", [kind for kind in ENDINGS if kind != BED])
def test_a_new_run_reads_the_files_as_they_are(kind, tmp_path):
    engine = far(sites_of(write_rows(tmp_path, kind, OLD)))
    fit(engine)
    replace(tmp_path, kind, LONGER)
    followed = fit(engine)
    fresh = fit(far(sites_of(tmp_path / f"rows{kind}")))
    assert followed.n_samples_ == 140
    assert followed.components_.tobytes() == fresh.components_.tobytes()
    assert followed.site_variance_ratio_ == fresh.site_variance_ratio_


def test_a_file_of_another_dtype_is_read_as_it_is(tmp_path):
    engine = far(sites_of(write_rows(tmp_path, ".npy", OLD)))
    before = fit(engine).components_
    replace(tmp_path, ".npy", OLD.astype(np.float32))
    np.testing.assert_allclose(fit(engine).components_, before, atol=1e-5)


def test_a_policy_counts_the_rows_that_are_there(tmp_path):
    path = write_rows(tmp_path, ".parquet", OLD)
    engine = far(sites_of(path, policy=Policy(min_rows=20)))
    fit(engine)
    replace(tmp_path, ".parquet", SHORT)
    with pytest.raises(PolicyRefused, match="fewer rows than its policy's min_rows=20"):
        fit(engine)


def test_a_site_started_again_knows_the_rows_with_which_the_run_began(tmp_path):
    path, journal = write_rows(tmp_path, ".npy", OLD), tmp_path / "j"
    engine = far(sites_of(path), journal=journal)
    fit(engine)
    replace(tmp_path, ".npy", NEW)  # before the run below begins
    with pytest.raises(Stopped):
        fit(engine, journal=journal, on_round=stopping_after(2))
    resumed = fit(far(sites_of(path), journal=journal), journal=journal)
    assert resumed.components_.tobytes() == fit(far(sites_of(path))).components_.tobytes()


@question(answers={"total": "float64"})
def sum_while_a_file_is_replaced(site):
    total = sum(float(block.sum()) for block in site.rows.blocks())
    replace(site.folder, ".npy", NEW)
    return {"total": np.float64(total)}


@question(answers={"total": "float64"})
def stumble_over_a_file_that_is_another(site):
    replace(site.folder, ".npy", SHORT)
    return {"total": np.float64(next(site.rows.blocks())[0, 0])}


@pytest.mark.parametrize(
    "asked", [sum_while_a_file_is_replaced, stumble_over_a_file_that_is_another]
)
def test_rows_that_change_while_they_are_read_are_refused(asked, tmp_path):
    holder = Site(write_rows(tmp_path, ".npy", OLD), name="a")
    holder.folder = tmp_path
    with pytest.raises(InputError, match="the rows have changed since the run began"):
        Federation(far([holder])).sum(asked)


def test_files_that_cannot_be_opened_stop_a_new_run_and_are_named(tmp_path):
    path = write_rows(tmp_path, ".parquet", OLD)
    engine = far(sites_of(path))
    fit(engine)
    path.write_bytes(b"half")
    with pytest.raises(InputError, match=r"site 'a'.*rows.parquet is not a readable .parquet file"):
        fit(engine)
    path.unlink()
    with pytest.raises(QuorumLost, match=r"site 'a'.*rows.parquet can no longer be read"):
        fit(engine)
    write_rows(tmp_path, ".parquet", OLD)
    assert fit(engine).n_samples_ == 90


def test_a_file_that_comes_into_a_folder_belongs_to_the_next_run(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    np.save(folder / "1.npy", OLD)
    engine = far({"a": folder})

    def on_round(entry):
        if entry["round"] == 2:
            np.save(folder / "2.npy", NEW)

    assert fit(engine, on_round=on_round).n_samples_ == 40
    assert fit(engine).n_samples_ == 80


def test_rows_in_memory_are_not_looked_at_again(monkeypatch):
    def never(rows):
        raise AssertionError

    monkeypatch.setattr(source, "checksum", never)
    fit(far({"a": OLD, "b": OTHERS}))


def test_a_late_question_of_a_run_that_is_over_does_not_open_files(tmp_path):
    """Else the run that goes on would take the new rows for those with which it began."""
    holder = Site(write_rows(tmp_path, ".npy", OLD), name="a")
    engine = far([holder])
    late, fed = Federation(engine), Federation(engine)
    late.gather(column_names)
    fed.gather(column_names)
    replace(tmp_path, ".npy", NEW)
    with pytest.raises(Exception, match="this run is over"):
        late.gather(column_names)
    with pytest.raises(InputError, match="the rows have changed since the run began"):
        fed.gather(column_names)


def test_a_site_says_that_its_files_changed(tmp_path):
    told = []
    holder = Site(write_rows(tmp_path, ".csv", OLD), name="a")
    ledger = AnswerLog(holder, tmp_path / "ledger.jsonl", told.append)
    for run in ("first", "second", "third"):
        header = {
            "run": run,
            "round": 1,
            "verb": "gather",
            "n_sites": 1,
            "memory": 0,
            "question": "column_names",
        }
        ledger.answer(encode(compose(header, {})))
        if run == "first":
            replace(tmp_path, ".csv", LONGER)
    said = [line for line in told if "files" in line]
    assert said == ["the files changed and were reopened: 90 rows with 4 features"]


def refuse_gaps(rows):
    if any(np.isnan(block).any() for block in rows.blocks()):
        raise InputError("there are gaps")


def test_a_site_that_checks_its_rows_stays_out_while_they_are_bad(tmp_path):
    path = write_rows(tmp_path, ".parquet", OLD)
    engine = far(sites_of(path, check=refuse_gaps))
    fit(engine)
    bad = OLD.copy()
    bad[3, 1] = np.nan
    replace(tmp_path, ".parquet", bad)
    with pytest.raises(QuorumLost, match=r"site 'a'.*stays out of this run.*there are gaps"):
        fit(engine)
    without = fit(engine, quorum=1)
    assert without.run_.sites == ("b",)
    assert "there are gaps" in without.run_.lost[0]["reason"]
    path.write_bytes(b"junk")
    with pytest.raises(QuorumLost, match=r"stays out of this run.*not a readable \.parquet"):
        fit(engine)
    path.unlink()
    replace(tmp_path, ".parquet", NEW)
    assert fit(engine).run_.sites == ("a", "b")


def test_a_site_that_checks_its_rows_does_not_open_bad_ones(tmp_path):
    bad = OLD.copy()
    bad[3, 1] = np.nan
    with pytest.raises(InputError, match="site 'a': there are gaps"):
        sites_of(write_rows(tmp_path, ".csv", bad), check=refuse_gaps)
