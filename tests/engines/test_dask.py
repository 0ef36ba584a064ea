"""Rows on a Dask cluster give what one process gives, also if a worker is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial

import anndata
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from distributed import Client, LocalCluster

import command_line
import forked
from cohorts import three_cohorts
from fedpca import (
    FederatedPCA,
    Federation,
    PersonalizedPCA,
    Privacy,
    RobustPCA,
    Site,
    StreamingPCA,
    load,
)
from fedpca.audit.transcript import RecordingEngine
from fedpca.engines.dask import engine as dask_engine
from fedpca.engines.dask.engine import DaskEngine
from fedpca.errors import InputError, LinkError, QuorumLost
from fedpca.linalg.dense import sine_of_angle
from fedpca.testing import ScriptedEngine, check_engine
from support import gapped_rows, low_rank_rows

pytestmark = pytest.mark.process
ROWS = gapped_rows(np.random.default_rng(8), 240, 8, 3, offset=1.0)
CLUSTER = {"threads_per_worker": 1, "dashboard_address": ":0"}
NAMES = [f"f{j}" for j in range(8)]
LANCZOS = partial(FederatedPCA, 3, solver="lanczos", random_state=0)  # of several rounds
CHUNKED = da.from_array(ROWS, chunks=(50, 8))
FRAME = pd.DataFrame(ROWS, columns=NAMES)


@pytest.fixture(scope="module")
def threads():
    """A client of three workers in this process."""
    with (
        LocalCluster(processes=False, n_workers=3, **CLUSTER) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def processes():
    """A client of two workers, each a process."""
    with (
        LocalCluster(processes=True, n_workers=2, **CLUSTER) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def assert_same(fitted, expected):
    assert sine_of_angle(fitted.components_.T, expected.components_.T) < 1e-10
    np.testing.assert_allclose(
        fitted.explained_variance_, expected.explained_variance_, rtol=1e-10, atol=0
    )
    np.testing.assert_allclose(fitted.mean_, expected.mean_, rtol=1e-10, atol=1e-12)


def test_an_engine_for_dask_keeps_the_promises_of_an_engine(threads):
    rows = {"north": ROWS[:100], "south": ROWS[100:]}
    # one block for each site, held at its worker, since the order of additions within a site shows in
    # the last bits, and rows that are costly to read are added up in one reading
    held = {name: threads.persist(da.from_array(x, x.shape)) for name, x in rows.items()}
    check_engine(DaskEngine(threads, held), rows)


@pytest.mark.parametrize("options", [{"secure": True}, {"journal": "run.journal"}], ids=str)
def test_a_wrapped_engine_refuses_what_the_engine_on_a_cluster_refuses(threads, options, tmp_path):
    options = {name: tmp_path / v if name == "journal" else v for name, v in options.items()}
    engine = DaskEngine(threads, CHUNKED)
    with pytest.raises(InputError) as bare:
        Federation(engine, **options)
    for wrap in (ScriptedEngine, RecordingEngine):
        with pytest.raises(InputError) as wrapped:
            Federation(wrap(engine), **options)
        assert str(wrapped.value) == str(bare.value)


def sparse_blocks():
    return CHUNKED.map_blocks(sp.csr_array, dtype=float)


def unknown_lengths():
    return CHUNKED[CHUNKED[:, 0] > -np.inf]


def delayed_blocks():
    return [dask.delayed(np.copy)(part) for part in np.array_split(ROWS, 5)]


TABLES = {
    "an array": lambda client: CHUNKED,
    "one block": lambda client: da.from_array(ROWS, (240, 8)),
    "sparse blocks": lambda client: sparse_blocks(),
    "unknown lengths": lambda client: unknown_lengths(),
    "a frame": lambda client: dd.from_pandas(FRAME, npartitions=5),
    "delayed blocks": lambda client: delayed_blocks(),
    "futures": lambda client: client.scatter(np.array_split(ROWS, 4)),
    "a persisted array": lambda client: client.persist(CHUNKED),
    "a persisted frame": lambda client: client.persist(dd.from_pandas(FRAME, npartitions=5)),
    "work on a persisted array": lambda client: client.persist(CHUNKED / 2) * 2,
}


@pytest.mark.parametrize("table", TABLES)
def test_any_table_gives_what_one_process_gives(threads, table):
    fed = Federation.dask(threads, TABLES[table](threads))
    fitted, expected = LANCZOS().fit(fed), LANCZOS().fit(ROWS)
    assert_same(fitted, expected)
    assert fitted.n_samples_ == len(ROWS)
    assert len(fitted.run_.sites) == (1 if table == "one block" else 3)
    assert fitted.run_.rounds == expected.run_.rounds


def test_features_in_several_chunks_are_put_together_with_a_warning(threads):
    chunked = da.from_array(ROWS, chunks=(50, 3))
    with pytest.warns(UserWarning, match="3 chunks"):
        fed = Federation.dask(threads, chunked)
    assert_same(FederatedPCA(3).fit(fed), FederatedPCA(3).fit(ROWS))


def test_only_sums_reach_the_client_and_the_ledger_has_them(threads, monkeypatch):
    monkeypatch.setattr(dask_engine, "SUM_FAN_IN", 2)
    parts = dict(zip("abcde", np.array_split(ROWS, 5), strict=True))
    tables = {name: da.from_array(rows, rows.shape) for name, rows in parts.items()}
    reached, gather = [], Client.gather
    monkeypatch.setattr(
        Client, "gather", lambda *args, **more: reached.append(gather(*args, **more)) or reached[-1]
    )
    fitted, within = LANCZOS().fit(Federation.dask(threads, tables)), LANCZOS().fit(parts)
    assert_same(fitted, within)
    assert fitted.run_.rounds == within.run_.rounds
    ledger = list(fitted.run_.ledger)
    assert [entry for entry in ledger if entry.site in parts] == list(within.run_.ledger)
    sums = {entry.site for entry in ledger} - set(parts)
    assert sums == {f"(sum of {w})" for w in ("a to b", "c to d", "a to d", "a to e")}
    assert {entry.how for entry in ledger if entry.site in sums} == {"summed"}
    # single answers reach the client only if the program looks at them
    assert {r.header["question"] for r in reached} == {"column_names", "explained_energy"}
    assert fitted.run_.bytes_up == sum(entry["bytes_up"] for entry in fitted.run_.history)


def block_elsewhere(i, client_process):
    """Return a block, but never in the process of the client."""
    assert os.getpid() != client_process
    return ROWS[i * 20 : (i + 1) * 20]


def test_a_killed_worker_changes_nothing_but_who_answers(processes):
    blocks = [dask.delayed(block_elsewhere)(i, os.getpid()) for i in range(12)]
    undisturbed = LANCZOS().fit(Federation.dask(processes, blocks))
    assert_same(undisturbed, LANCZOS().fit(ROWS))
    fed = Federation.dask(processes, blocks)
    pids = processes.run(os.getpid)
    killed = []

    def on_round(entry):
        if entry["round"] == 5 and not killed:
            (place,) = processes.who_has(fed.engine._sites["site-1"]).values()
            os.kill(pids[place[0]], signal.SIGKILL)
            killed.extend(place)

    fed.terms.on_round = on_round
    fitted = LANCZOS().fit(fed)
    assert killed
    assert fitted.run_.rounds > 6
    assert fitted.components_.tobytes() == undisturbed.components_.tobytes()
    assert list(fitted.run_.ledger) == list(undisturbed.run_.ledger)
    assert not fitted.run_.lost
    (place,) = processes.who_has(fed.engine._sites["site-1"]).values()
    assert place != tuple(killed)


def test_files_are_read_by_the_workers(processes, tmp_path, monkeypatch):
    for i in range(5):
        part = FRAME[i * 48 : (i + 1) * 48]
        part.assign(patient="p").to_parquet(tmp_path / f"part-{i}.parquet", index=False)
    expected = FederatedPCA(3).fit(FRAME)
    processes.wait_for_workers(2)  # if one was killed
    fed = Federation.dask(processes, str(tmp_path / "*.parquet"), id="patient")
    assert_same(FederatedPCA(3).fit(fed), expected)
    assert len(fed.engine.names) == 2
    monkeypatch.chdir(tmp_path)
    address = processes.scheduler.address
    words = (
        "fit",
        "*.parquet",
        "--cluster",
        address,
        "--drop",
        "patient",
        "-k",
        "3",
        "-o",
        "m.fedpca",
    )
    assert command_line.run(*words).exit_code == 0
    assert_same(load("m.fedpca"), expected)
    part[:9].to_parquet(tmp_path / "part-0.parquet", index=False)  # fewer rows than before
    with pytest.raises(InputError, match="a file has changed"):
        FederatedPCA(3).fit(fed)


def test_a_model_is_verified_on_a_cluster(processes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FederatedPCA(3).fit(FRAME).save("m.fedpca")
    FRAME.assign(patient="p").to_parquet("part.parquet", index=False)
    processes.wait_for_workers(1)
    done = command_line.run(
        "verify", "m.fedpca", "part.parquet", "--cluster", processes.scheduler.address
    )
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def shell(processes, tmp_path_factory):
    """Call fedpca in a process of its own, where no client is in use; return the finished process."""
    folder = tmp_path_factory.mktemp("shell")
    for i, part in enumerate(np.array_split(ROWS, 2)):
        np.save(folder / f"part-{i}.npy", part)

    def call(*words):
        fit = ("fit", "part-0.npy", "part-1.npy", "-k", "3", "-o", "m.fedpca", "--force")
        words = [*fit, "--cluster", processes.scheduler.address, *words]
        return forked.run(
            [sys.executable, "-m", "fedpca", *words], cwd=folder, capture_output=True, text=True
        ), folder / "m.fedpca"

    return call


@pytest.mark.parametrize("solver", ["covariance", "merge"])  # which sum, and gather
def test_a_shell_fits_rows_on_a_cluster(shell, solver):
    done, model = shell("--solver", solver)
    assert done.returncode == 0, done.stderr
    assert_same(load(model), FederatedPCA(3).fit(ROWS))


def test_a_shell_refuses_a_private_fit_on_a_cluster_and_says_why(shell):
    done, _ = shell("--epsilon", "1", "--delta", "1e-6", "--row-bound", "8")
    assert done.returncode == 2
    assert DaskEngine.lacks["privacy"].split(";")[0] in " ".join(done.stderr.split())


def fail(_):
    raise OSError("the disk is gone")


@pytest.mark.parametrize("where", ["a block", "a future"])
def test_a_site_whose_rows_cannot_be_computed_is_lost(threads, where):
    rows = {"a": [dask.delayed(np.copy)(ROWS[:120])], "b": [dask.delayed(np.copy)(ROWS[120:])]}
    rows["c"] = [dask.delayed(fail)(0)] if where == "a block" else [threads.submit(fail, 0)]
    with pytest.raises(QuorumLost, match=r"site 'c', round 1.*OSError"):
        FederatedPCA(3).fit(Federation.dask(threads, rows))
    fitted = FederatedPCA(3).fit(Federation.dask(threads, rows, quorum=2))
    assert fitted.run_.sites == ("a", "b")
    assert_same(fitted, FederatedPCA(3).fit(ROWS))


def test_a_site_that_fails_in_a_sum_is_asked_again_and_then_lost(threads):
    # after the columns are known
    fails_later = [
        dask.delayed(np.copy)(ROWS[:9]),
        dask.delayed(fail)(0),
    ]
    fed = Federation.dask(threads, {"a": CHUNKED, "b": fails_later}, quorum=1)
    fitted = FederatedPCA(3).fit(fed)
    assert [lost["question"] for lost in fitted.run_.lost] == ["count_and_sum"]
    asked = [e for e in fitted.run_.ledger if e.question == "count_and_sum" and e.how == "sent"]
    assert [e.site for e in asked if e.field == "missing"] == ["a", "b", "b", "a"]
    assert_same(fitted, FederatedPCA(3).fit(ROWS))


MAY_GO_ON = threading.Event()


def stuck(i):
    MAY_GO_ON.wait()
    return ROWS


def test_a_time_limit_ends_a_round(threads):
    blocks = {name: [dask.delayed(stuck)(name)] for name in "ab"}
    try:
        with pytest.raises(QuorumLost, match=r"no answer within 0.01 s"):
            FederatedPCA(3).fit(Federation.dask(threads, blocks, timeout=0.01))
    finally:
        MAY_GO_ON.set()


def test_what_makes_no_sense_on_a_cluster_of_one_owner_is_refused(threads):
    with pytest.raises(InputError, match="have one owner"):
        Federation.dask(threads, CHUNKED, secure=True)
    with pytest.raises(InputError, match="journal cannot resume"):
        Federation.dask(threads, CHUNKED, journal="run.journal")
    with pytest.raises(InputError, match="the full noise"):
        FederatedPCA(2, privacy=Privacy(1.0, 1e-6, 8.0)).fit(CHUNKED)
    with pytest.raises(InputError, match=r"1 dimension\(s\)"):
        FederatedPCA(2).fit(Federation.dask(threads, CHUNKED[:, 0]))
    with pytest.raises(InputError, match="cannot read rows from ndarray"):
        Federation.dask(threads, ROWS)
    with pytest.raises(InputError, match="dict with the rows of each site"):
        FederatedPCA(2).fit(CHUNKED, sites=np.zeros(240))
    with pytest.raises(InputError, match="the name of a column"):
        FederatedPCA(2).fit(CHUNKED, sample_weight=np.ones(240))
    with pytest.raises(InputError, match="not numeric: name"):
        FederatedPCA(2).fit(dd.from_pandas(FRAME.assign(name="x"), npartitions=2))
    with pytest.raises(InputError, match="no file matches"):
        Federation.dask(threads, "nowhere/*.parquet")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "10ms"}),
        pytest.raises(LinkError, match="no Dask scheduler at tcp"),
    ):
        Federation.dask("tcp://127.0.0.1:9", CHUNKED)


@pytest.mark.parametrize("has_client", [True, False])
def test_estimators_take_dask_collections(threads, has_client, monkeypatch):
    if not has_client:
        monkeypatch.setattr(dask_engine, "get_client", lambda: (_ for _ in ()).throw(ValueError))
    frame = dd.from_pandas(FRAME.assign(w=2.0), npartitions=4)
    pca, expected = FederatedPCA(3), FederatedPCA(3).fit(FRAME)
    twice = FederatedPCA(3).fit(FRAME, sample_weight=np.full(240, 2.0))
    assert_same(pca.fit(frame, sample_weight="w"), twice)
    assert len(pca.run_.sites) == (3 if has_client else 1)
    scores = pca.fit_transform(frame.drop(columns="w"))
    assert_same(pca, expected)
    assert list(pca.feature_names_in_) == NAMES
    np.testing.assert_allclose(scores.compute(), expected.transform(FRAME), atol=1e-10)
    unnamed = FederatedPCA(3).fit(CHUNKED).transform(CHUNKED)
    assert unnamed.chunks == ((50, 50, 50, 50, 40), (3,))
    np.testing.assert_allclose(abs(unnamed.compute()), abs(scores.compute()), atol=1e-10)
    whole_numbers = FederatedPCA(3).fit(CHUNKED).transform((10 * CHUNKED).astype(int))
    assert whole_numbers.dtype == whole_numbers.compute().dtype == np.float64

    stream, whole = StreamingPCA(3).fit(frame.drop(columns="w")), StreamingPCA(3).fit(FRAME)
    assert_same(stream, whole)
    assert stream.n_samples_seen_ == 240
    assert stream.partial_fit(FRAME).n_samples_seen_ == 480
    with pytest.raises(InputError, match=r"forgetting=0.9 requires rows in order"):
        StreamingPCA(3, forgetting=0.9).fit(CHUNKED)

    table, _, _ = low_rank_rows(120, 12, 2, seed=3)
    robust = RobustPCA(2, random_state=0).fit(da.from_array(table, (40, 12)))
    alone = RobustPCA(2, random_state=0).fit(table)
    assert sine_of_angle(robust.components_.T, alone.components_.T) < 1e-8
    assert robust.transform(da.from_array(table, (40, 12))).shape == (120, 2)

    halves = {"north": ROWS[:120] * [3, 1, 1, 1, 1, 1, 1, 1], "south": ROWS[120:] * [1] * 1}
    own = PersonalizedPCA(1, 1, random_state=0)
    expected = PersonalizedPCA(1, 1, random_state=0).fit(halves)
    own.fit({name: da.from_array(rows, (40, 8)) for name, rows in halves.items()})
    assert sine_of_angle(own.components_.T, expected.components_.T) < 1e-8
    assert own.transform(CHUNKED, "north").shape == (240, 2)


def test_workers_read_sources_of_several_files(threads, tmp_path):
    beds, *_ = three_cohorts(tmp_path, missing=0)
    cohorts = {name: str(bed) for name, bed in zip("abc", beds, strict=True)}
    fits = [FederatedPCA(2).fit(fed) for fed in (Federation.dask(threads, cohorts), cohorts)]
    assert_same(*fits)
    cells = zarr.create_array(tmp_path / "cells.zarr", shape=(9, 3), chunks=(4, 3), dtype="f8")
    cells[:] = np.random.default_rng(0).normal(size=(9, 3))
    fits = [
        FederatedPCA(2).fit(rows)
        for rows in (Federation.dask(threads, [str(tmp_path / "cells.zarr")]), [cells[:]])
    ]
    assert_same(*fits)


def test_workers_read_files_as_a_site_would(threads, tmp_path):
    rng = np.random.default_rng(0)
    counts = {name: rng.poisson(4.0, size=(30, 6)).astype(float) for name in ("north", "south")}
    for name, X in counts.items():
        zero = np.zeros_like(X)
        anndata.AnnData(zero, layers={"counts": X}).write(tmp_path / f"{name}.h5ad")
    paths = {name: str(tmp_path / f"{name}.h5ad") for name in counts}
    how = {"layer": "counts", "log_normalize": 100}
    there = FederatedPCA(2).fit(Federation.dask(threads, paths, **how))
    here = FederatedPCA(2).fit([Site(path, name=name, **how) for name, path in paths.items()])
    assert_same(there, here)
    assert there.run_.log_normalized == 100
    with pytest.raises(InputError, match="cannot divide the result of a query"):
        Federation.dask(threads, "sqlite:///x.db", query="select 1")
