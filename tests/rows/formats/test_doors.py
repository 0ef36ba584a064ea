"""Rows in arrays on disk, partitioned datasets, and databases equal the same rows in memory."""

from __future__ import annotations

import sqlite3

import duckdb
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.parquet
import pytest
import zarr

from fedpca import FederatedPCA, Federation, Site
from fedpca.errors import InputError, QuorumLost, SiteFailed
from fedpca.rows import in_memory
from fedpca.rows.formats import array_files, query
from fedpca.rows.formats.query import Query
from fedpca.rows.open import file_states, open_rows
from support import NAMES, gapped_rows

X = gapped_rows(np.random.default_rng(0), 60, 4, 2, offset=10.0)
SQL = "select a, b, c, d from visits order by number"


def write_hdf5(folder, *, name="X", chunks=(7, 3), X=X):
    with h5py.File(folder / "rows.h5", "w") as file:
        file.create_dataset(name, data=X, chunks=chunks, compression="gzip" if chunks else None)
    return folder / "rows.h5"


def write_zarr(folder, X=X, chunks=(7, 3)):
    array = zarr.create_array(
        str(folder / "rows.zarr"), shape=X.shape, chunks=chunks, dtype=X.dtype
    )
    array[:] = X
    return folder / "rows.zarr"


def write_sqlite(path, X=X):
    with sqlite3.connect(path) as database:
        database.execute(
            "create table visits (number integer, a real, b real, c real, d real, hospital text)"
        )
        rows = [(i, *row, "north" if i % 2 else "south") for i, row in enumerate(X.tolist())]
        database.executemany("insert into visits values (?, ?, ?, ?, ?, ?)", rows)
    database.close()
    return path


def write_duckdb(path, X=X):
    database = duckdb.connect(str(path))
    table = pa.table({"number": np.arange(len(X)), **dict(zip(NAMES, X.T, strict=True))})
    database.register("given", table)
    database.execute("create table visits as select * from given")
    database.close()
    return path


def same_bits(rows_of_sites):
    """Whether a fit over two sites has the bits of the same rows in memory."""
    options = {"n_components": 2, "random_state": 0}
    fits = [FederatedPCA(**options).fit(rows) for rows in (rows_of_sites, [X, 2 * X])]
    return np.array_equal(fits[0].components_, fits[1].components_)


def test_a_zarr_array_without_chunks_is_refused(tmp_path):
    path = write_zarr(tmp_path)
    for chunk in sorted(path.glob("c/*/*")):
        chunk.unlink()
    with pytest.raises(InputError, match=r"rows\.zarr: the array has no chunk"):
        open_rows(path)


def test_decimals_that_adbc_leaves_as_text_become_numbers():
    kind = pa.opaque(pa.string(), "numeric", "PostgreSQL")
    amounts = pa.ExtensionArray.from_storage(kind, pa.array(["0.125", None, "1e3", "NaN"]))
    batch = pa.record_batch([pa.array([1, 2, 3, 4]), amounts], names=["i", "amount"])
    schema, batches = query.with_numbers(pa.RecordBatchReader.from_batches(batch.schema, [batch]))
    assert schema.types == [pa.int64(), pa.float64()]
    (got,) = batches
    np.testing.assert_array_equal(
        got["amount"].to_numpy(zero_copy_only=False), [0.125, np.nan, 1e3, np.nan]
    )


def test_errors_about_a_result_name_the_query():
    clinic = sqlite3.connect(":memory:")
    with pytest.raises(InputError, match=r"site 'north': the query's result: .*not numeric: b"):
        Site.query(clinic, "select 1.0 as a, 'x' as b", name="north")


@pytest.mark.parametrize("write", [write_hdf5, write_zarr])
@pytest.mark.parametrize("rows_in_block", [3, 10, 1000])
def test_arrays_on_disk_have_the_blocks_of_arrays_in_memory(
    write, rows_in_block, tmp_path, monkeypatch
):
    monkeypatch.setattr(in_memory, "BLOCK_BYTES", rows_in_block * 8 * 4)
    opened = open_rows(write(tmp_path))
    for block, same in zip(opened.blocks(), open_rows(X).blocks(), strict=True):
        np.testing.assert_array_equal(block, same)
    assert (opened.n_rows, opened.n_features, opened.features) == (60, 4, None)
    assert same_bits([str(tmp_path), 2 * X])


def test_a_chunk_far_longer_than_a_block_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(in_memory, "BLOCK_BYTES", 3 * 8 * 4)
    read = []
    pieces = array_files.ArrayRows._pieces
    monkeypatch.setattr(
        array_files.ArrayRows,
        "_pieces",
        lambda self: (read.append(len(piece)) or piece for piece in pieces(self)),
    )
    list(open_rows(write_hdf5(tmp_path, chunks=(60, 4))).blocks())
    assert max(read) == 3


def test_open_arrays_are_read_in_blocks_and_not_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(in_memory, "BLOCK_BYTES", 10 * 8 * 4)
    array = zarr.open(write_zarr(tmp_path), mode="r")
    with h5py.File(write_hdf5(tmp_path)) as file:
        for source in (file["X"], array):
            assert isinstance(open_rows(source), array_files.ArrayRows)
        assert same_bits([file["X"], 2 * X])
        one = FederatedPCA(2, random_state=0).fit(file["X"])
    np.testing.assert_array_equal(
        one.components_, FederatedPCA(2, random_state=0).fit(X).components_
    )


@pytest.mark.parametrize(
    ("name", "others", "said"),
    [
        ("rows", {}, None),
        ("X", {"weights": X}, None),
        ("a", {"b": X}, "the arrays a, b; name the rows 'X'"),
        ("a", {"a": X[0]}, "no 2-D array of numbers"),
    ],
)
def test_the_rows_are_the_only_table_in_a_file_or_named_x(name, others, said, tmp_path):
    with h5py.File(tmp_path / "many.h5", "w") as file:
        group = zarr.open_group(tmp_path / "many.zarr", mode="w")
        for key, value in {name: X, **others}.items():
            file[key] = value
            group[key] = value
    for path in (tmp_path / "many.h5", tmp_path / "many.zarr"):
        if said is None:
            np.testing.assert_array_equal(np.vstack(list(open_rows(path).blocks())), X)
        else:
            with pytest.raises(InputError, match=f"many.*{said}"):
                open_rows(path)


@pytest.mark.parametrize("write", [write_hdf5, write_zarr])
def test_damaged_arrays_are_refused_by_name(write, tmp_path):
    path = write(tmp_path)
    for part in [path] if path.is_file() else list(path.rglob("zarr.json")):
        part.write_bytes(part.read_bytes()[:20])
    with pytest.raises(InputError, match=f"{path.name} is not a readable"):
        open_rows(path)


@pytest.mark.parametrize("write", [write_hdf5, write_zarr])
def test_a_damaged_chunk_is_named_when_it_is_read(write, tmp_path):
    path = write(tmp_path)
    rows = open_rows(path)
    if path.is_file():
        content = bytearray(path.read_bytes())
        content[len(content) // 2 : -100] = bytes(len(content[len(content) // 2 : -100]))
        path.write_bytes(bytes(content))
    else:
        chunk = sorted(
            part for part in path.rglob("*") if part.is_file() and part.suffix != ".json"
        )[3]
        chunk.write_bytes(chunk.read_bytes()[:9])
    with pytest.raises(SiteFailed, match=f"{path.name}.*can no longer be read"):
        list(rows.blocks())


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_a_damaged_database_is_refused(scheme, tmp_path):
    (tmp_path / "rows").write_bytes(b"no database" * 100)
    with pytest.raises(InputError, match="site 'a': the database did not answer the query"):
        Site.query(f"{scheme}:///{tmp_path / 'rows'}", SQL, name="a")


@pytest.mark.parametrize("kind", ["h5", "zarr", "parquet", "feather", "query"])
def test_rows_that_do_not_match_those_of_another_site_are_refused_by_name(kind, tmp_path):
    less = X[:, :3]
    if kind in ("h5", "zarr"):
        source = (write_hdf5 if kind == "h5" else write_zarr)(tmp_path, X=less)
        sites = {"whole": X, "less": source}
        said = "site 'less', compared with site 'whole': 3 columns instead of 4"
    else:
        table = pa.table(dict(zip(NAMES, less.T, strict=False)))
        sites = {
            "whole": pa.table(dict(zip(NAMES, X.T, strict=True))),
            "less": tmp_path / f"r.{kind}",
        }
        if kind == "query":
            lite = write_sqlite(tmp_path / "rows.db")
            sites["less"] = Site.query(
                f"sqlite:///{lite}", "select a, b, c from visits", name="less"
            )
        elif kind == "parquet":
            pyarrow.parquet.write_table(table, sites["less"])
        else:
            pyarrow.feather.write_feather(table, sites["less"])
        said = r"site 'less', compared with site 'whole': the columns differ: 1 missing \(d\)"
    with pytest.raises(InputError, match=said):
        FederatedPCA(2).fit(sites)


def test_a_zarr_array_that_changes_is_noticed(tmp_path):
    path = write_zarr(tmp_path)
    before = file_states(tmp_path)
    assert file_states(path) == before
    zarr.open(path, mode="r+")[3:5] = 0.0
    assert file_states(tmp_path) != before


def test_a_package_that_is_absent_is_named(tmp_path, monkeypatch):
    path = write_hdf5(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(InputError, match=r"requires h5py.*fedpca\[arrays\]"):
        open_rows(path)


@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_folders_of_a_partitioned_dataset_name_the_sites(kind, tmp_path):
    hospitals = ["no/rth" if i % 3 else "south" for i in range(60)]
    table = pa.table({**dict(zip(NAMES, X.T, strict=True)), "hospital": hospitals})
    parts = ds.partitioning(pa.schema([("hospital", pa.string())]), flavor="hive")
    ds.write_dataset(table, tmp_path / "rows", format=kind, partitioning=parts)
    rows = open_rows(tmp_path / "rows")
    assert rows.features == tuple(NAMES)
    by_folder = FederatedPCA(2, random_state=0).fit(str(tmp_path / "rows"), sites="hospital")
    by_label = FederatedPCA(2, random_state=0).fit(table, sites="hospital")
    assert sorted(by_folder.run_.sites) == ["no/rth", "south"]
    np.testing.assert_allclose(by_folder.components_, by_label.components_, atol=1e-12)
    site = Site(tmp_path / "rows", name="all", id="hospital")
    ids = [name for _, ids in site.rows.blocks_with_ids() for name in ids.column(0).to_pylist()]
    assert sorted(ids) == sorted(hospitals)


def test_a_folder_for_rows_without_a_value_has_no_label(tmp_path):
    table = pa.table({**dict(zip(NAMES, X.T, strict=True)), "hospital": [None] * 60})
    parts = ds.partitioning(pa.schema([("hospital", pa.string())]), flavor="hive")
    ds.write_dataset(table, tmp_path / "rows", format="parquet", partitioning=parts)
    with pytest.raises(InputError, match="no label for 60 of the 60 rows"):
        FederatedPCA(2).fit(str(tmp_path / "rows"), sites="hospital")


def test_queries_equal_the_same_rows_in_memory(tmp_path, monkeypatch):
    lite, duck = write_sqlite(tmp_path / "rows.db"), write_duckdb(tmp_path / "rows.duckdb", 2 * X)
    sites = [
        Site.query(f"sqlite:///{lite}", SQL, name="lite"),
        Site.query(lambda: duckdb.connect(str(duck), read_only=True), SQL, name="duck"),
    ]
    assert sites[0].rows.features == tuple(NAMES)
    assert same_bits(sites)
    monkeypatch.chdir(tmp_path)
    assert same_bits(
        [
            Site.query(f"{a}:///{b.name}", SQL, name=a)
            for a, b in (("sqlite", lite), ("duckdb", duck))
        ]
    )


def test_adbc_connections_answer_in_arrow(tmp_path):
    dbapi = pytest.importorskip("adbc_driver_sqlite.dbapi")
    lite = write_sqlite(tmp_path / "rows.db")
    with dbapi.connect(f"file:{lite}") as connection:
        site = Site.query(connection, SQL, name="lite")
        np.testing.assert_array_equal(np.vstack(list(site.rows.blocks())), X)


def test_a_run_keeps_its_rows_and_the_next_run_asks_again(tmp_path):
    lite = write_sqlite(tmp_path / "rows.db")
    site = Site.query(f"sqlite:///{lite}", SQL, name="lite")
    kept = site.source._given.result
    assert (kept.stat().st_mode & 0o077, kept.parent.stat().st_mode & 0o077) == (0o044, 0)
    fingerprint = site.fingerprint
    assert Site.query(f"sqlite:///{lite}", SQL, name="other").fingerprint == fingerprint
    federation = Federation.local([site, pa.table(dict(zip(NAMES, X.T, strict=True)))])
    first = FederatedPCA(2, random_state=0).fit(federation)
    assert site.source._given.result == kept
    with sqlite3.connect(lite) as database:
        database.execute("delete from visits where number > 40")
    database.close()
    second = FederatedPCA(2, random_state=0).fit(federation)
    assert (first.n_samples_, second.n_samples_) == (120, 101)
    assert site.fingerprint != fingerprint
    assert not kept.exists()
    lite.unlink()
    with pytest.raises(QuorumLost, match="database did not answer its query"):
        FederatedPCA(2).fit(federation)


@pytest.mark.parametrize("limits", [{"timeout": 60.0}, {"n_jobs": 2}])
def test_a_connection_is_queried_in_the_thread_that_fits(limits):
    base = sqlite3.connect(":memory:")
    base.execute("create table visits (a real, b real)")
    base.executemany("insert into visits values (?, ?)", X[:, :2].tolist())
    sites = [Site.query(base, "select * from visits", name=name) for name in ("s", "t")]
    federation = Federation.local(sites, **limits)
    assert FederatedPCA(1).fit(federation).n_samples_ == 2 * len(X)
    base.execute("delete from visits where a > (select avg(a) from visits)")
    (left,) = base.execute("select count(*) from visits").fetchone()
    assert 0 < left < len(X)
    assert FederatedPCA(1).fit(federation).n_samples_ == 2 * left
    base.close()
    with pytest.raises(QuorumLost, match="database did not answer its query"):
        FederatedPCA(1).fit(federation)


def test_a_run_that_gives_its_sites_back_keeps_the_rows_that_it_began_with():
    base = sqlite3.connect(":memory:")
    base.execute("create table visits (a real)")
    base.executemany("insert into visits values (?)", X[:, :1].tolist())
    source = Site.query(base, "select * from visits", name="s").source
    with source.asking_here("first"):
        files = source.files_now()
    base.execute("delete from visits where a > 0")
    with source.asking_here("first"):
        assert source.files_now() == files
    with source.asking_here("second"):
        assert source.files_now() != files
    base.execute("delete from visits")
    assert source.files_now() != files  # asked by nobody in this process


def test_columns_without_arrow_have_the_types_of_their_first_values(tmp_path, monkeypatch):
    monkeypatch.setattr(query, "BATCH_ROWS", 2)
    base = sqlite3.connect(":memory:")
    base.execute("create table visits (a, b, c)")
    base.executemany(
        "insert into visits values (?, ?, ?)", [(1, 2.5, "x"), (2**53 + 1, 3, None), (3, None, "y")]
    )
    site = Site.query(base, "select * from visits", name="s", id=["a", "c"])
    assert [str(kind) for kind in site.source.rows.id_schema.types] == ["int64", "string"]
    np.testing.assert_array_equal(np.vstack(list(site.rows.blocks())), [[2.5], [3.0], [np.nan]])
    base.execute("insert into visits values (1.5, 1, 'z')")
    with pytest.raises(
        InputError, match=r"column a has values that are not int64.*cast the column"
    ):
        Site.query(base, "select * from visits", name="s")


@pytest.mark.parametrize(
    ("database", "sql", "said"),
    [
        ("sqlite:///nowhere.db", SQL, "nowhere.db is not a file"),
        ("nowhere.db", SQL, "no scheme; write it as in sqlite:///rows.db"),
        ("oracle://scott:tiger@host", SQL, "pip install adbc-driver-oracle"),
        (3, SQL, "the database is a int"),
        (sqlite3.connect(":memory:"), SQL, "OperationalError: no such table: visits"),
        (sqlite3.connect(":memory:"), " ", "the query is empty"),
        (sqlite3.connect(":memory:"), "create table a (b)", "returns no rows; use a select"),
    ],
)
def test_bad_queries_are_refused_with_the_way_out(database, sql, said):
    with pytest.raises(InputError, match=said) as refused:
        Site.query(database, sql, name="s")
    assert "tiger" not in str(refused.value)


def test_a_query_removes_its_file_when_it_is_no_longer_used(tmp_path):
    asked = Query(f"sqlite:///{write_sqlite(tmp_path / 'rows.db')}", SQL)
    folder = asked.fetch().parent
    del asked
    assert not folder.exists()
