"""Rows on a Dask cluster give what one process gives, also if a worker is killed."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster

import command_line
from fedpca import FederatedPCA, Federation, PersonalizedPCA, Privacy, RobustPCA, StreamingPCA, load
from fedpca.engines.dask import engine as dask_engine
from fedpca.engines.dask.engine import DaskEngine
from fedpca.errors import InputError, LinkError, QuorumLost
from fedpca.linalg.dense import sine_of_angle
from fedpca.testing import check_engine
from support import gapped_rows, low_rank_rows

pytestmark = pytest.mark.process
ROWS = gapped_rows(np.random.default_rng(8), 240, 8, 3, offset=1.0)
CLUSTER = {"n_workers": 3, "threads_per_worker": 1, "dashboard_address": ":0"}
NAMES = [f"f{j}" for j in range(8)]
LANCZOS = partial(FederatedPCA, 3, solver="lanczos", random_state=0)  # of several rounds
CHUNKED = da.from_array(ROWS, chunks=(50, 8))
FRAME = pd.DataFrame(ROWS, columns=NAMES)


@pytest.fixture(scope="module")
def threads():
    """A client of three workers in this process."""
    with (
        LocalCluster(processes=False, **CLUSTER) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def processes():
    """A client of three workers, each a process."""
    with (
        LocalCluster(processes=True, **CLUSTER) as cluster,
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
    # one block for each site, since the order of additions within a site shows in the last bits
    check_engine(DaskEngine(threads, {k: da.from_array(x, x.shape) for k, x in rows.items()}), rows)


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
