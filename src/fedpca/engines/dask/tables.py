"""Divide the blocks or files of a table among the workers of a cluster."""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask
from dask.core import flatten
from dask.optimization import cull
from distributed import Client, Future, futures_of

from fedpca.engines.dask.at_worker import Blocks, TaskKey, WorkerFiles
from fedpca.errors import InputError
from fedpca.site.source import states_of_paths

SUPPORTED = "a Dask array or data frame, a list of delayed blocks, or paths"


@dataclass(frozen=True)
class DaskBlock:
    """One block of rows, which a small task graph computes, or one file of rows.

    Parameters
    ----------
    key : hashable or Path
        The key of the task whose result is the block, or the path of the file.
    graph : dict
        The tasks that lead to the block, except those whose results the cluster holds.
    futures : dict
        The results, by key, that the cluster holds and from which the graph starts.
    n_rows : int, optional
        The number of rows, if known.
    weight : float
        How much there is to read, compared with other blocks of the table.
    state : str
        The state of the file, which shows whether the file has changed.
    """

    key: Any
    graph: Mapping[TaskKey, Any] = field(default_factory=dict)
    futures: Mapping[TaskKey, Future] = field(default_factory=dict)
    n_rows: int | None = None
    weight: float = 1.0
    state: str = ""


@dataclass(frozen=True)
class Share:
    """What one site reads, and the worker that should read it."""

    rows: Blocks | WorkerFiles  # the blocks lack the results that the cluster holds
    futures: Sequence[Future]  # the results that the cluster holds
    worker: str


def site_parts(client: Client, rows: Any) -> dict[str, Share]:
    """Return what each site reads, with one site for each worker or for each item of a dict."""
    workers = sorted(client.nthreads())
    if not workers:
        raise InputError("the Dask cluster has no workers; start some, and try again")
    if isinstance(rows, Mapping):
        tables = {str(name): _blocks(client, table) for name, table in rows.items()}
        holders = _holders(client, [block for table in tables.values() for block in table])
        return {
            name: _share(table, _most_common(table, holders) or workers[i % len(workers)])
            for i, (name, table) in enumerate(tables.items())
        }
    table = _blocks(client, rows)
    spread = _spread(table, workers, _holders(client, table))
    return {
        f"site-{i}": _share(own, worker)
        for i, (worker, own) in enumerate(((w, own) for w, own in spread.items() if own), start=1)
    }


def blocks_of(rows: Any) -> list[DaskBlock]:
    """Return the blocks of rows of a Dask collection, or of a list of delayed blocks or futures."""
    parts = list(rows) if isinstance(rows, list | tuple) else [_one_table(rows)]
    if parts and all(isinstance(part, Future) for part in parts):
        return [DaskBlock(future.key, futures={future.key: future}) for future in parts]
    if not parts or not all(dask.is_dask_collection(part) for part in parts):
        raise InputError(f"cannot read rows from {type(rows).__name__}; pass {SUPPORTED}")
    held = {future.key: future for future in futures_of(parts)}
    graph: dict[TaskKey, Any] = dict.fromkeys(held)  # optimized graphs may leave these keys out
    keys: list[TaskKey] = []
    for part in parts:
        if hasattr(type(part), "optimize"):  # so that a data frame reads only the columns it needs
            part = part.optimize()
        own = list(flatten(part.__dask_keys__()))
        graph |= part.__dask_optimize__(part.__dask_graph__(), own)
        keys += own
    # an array knows the lengths of its blocks, or some of them
    lengths = parts[0].chunks[0] if _is_array(parts[0]) else [math.nan] * len(keys)
    return [_block(key, graph, held, n) for key, n in zip(keys, lengths, strict=True)]


def joined_blocks(blocks: Sequence[DaskBlock]) -> Blocks:
    """Return blocks as a site reads them; `open_site` adds the results that the cluster holds."""
    lengths = [block.n_rows for block in blocks]
    return Blocks(
        [(block.key, block.graph) for block in blocks],
        None if None in lengths else sum(n for n in lengths if n is not None),
        {key: None for block in blocks for key in block.futures},
    )


def _block(
    key: TaskKey, graph: Mapping[TaskKey, Any], held: Mapping[TaskKey, Future], length: float
) -> DaskBlock:
    own, _ = cull(graph, [key])
    n_rows = None if math.isnan(length) else int(length)
    return DaskBlock(
        key,
        {k: task for k, task in own.items() if k not in held},
        {k: held[k] for k in own if k in held},
        n_rows,
        1.0 if n_rows is None else n_rows + 1.0,
    )


def _one_table(rows: Any) -> Any:
    """Return a collection with all features in each block; refuse what is not a table."""
    if hasattr(type(rows), "ndim") and rows.ndim != 2:
        raise InputError(
            f"the rows have {rows.ndim} dimension(s); pass a 2-D array or a data frame"
        )
    if not _is_array(rows) or rows.numblocks[1] == 1:
        return rows
    n_chunks = rows.numblocks[1]
    warnings.warn(
        f"the features are in {n_chunks} chunks, so each time a block of rows is read, that many "
        "pieces are put together and may move between workers; to do this only once, use "
        "rechunk({1: -1}) and persist",
        UserWarning,
        stacklevel=2,
    )
    return rows.rechunk({1: -1})


def _is_array(rows: Any) -> bool:
    return hasattr(type(rows), "chunks")  # a delayed block itself seems to have every attribute


def _blocks(client: Client, rows: Any) -> list[DaskBlock]:
    """Return the blocks of a table, or its files as a worker sees them."""
    paths = list(rows) if isinstance(rows, list | tuple) else [rows]
    if not paths or not all(isinstance(path, str | os.PathLike) for path in paths):
        return blocks_of(rows)
    states = client.submit(
        states_of_paths, [os.fspath(path) for path in paths], pure=False
    ).result()
    return [DaskBlock(path, weight=_n_bytes(state), state=state) for path, state in states.items()]


def _n_bytes(state: str) -> float:
    return float(state.split()[0]) + 1.0  # the size, as in `fedpca.rows.open.state_of`; never zero


def _holders(client: Client, blocks: Sequence[DaskBlock]) -> dict[TaskKey, str]:
    """Map each result that blocks start from to a worker that holds the result."""
    futures = {key: future for block in blocks for key, future in block.futures.items()}
    if not futures:
        return {}
    where = client.who_has(list(futures.values()))
    return {key: sorted(where[key])[0] for key in futures if where.get(key)}


def _most_common(blocks: Sequence[DaskBlock], holders: Mapping[TaskKey, str]) -> str | None:
    """Return the worker that holds the most results that blocks start from, or None."""
    counts = Counter(holders[key] for block in blocks for key in block.futures if key in holders)
    return counts.most_common(1)[0][0] if counts else None


def _spread(
    blocks: Sequence[DaskBlock], workers: Sequence[str], holders: Mapping[TaskKey, str]
) -> dict[str, list[DaskBlock]]:
    """Give each worker the blocks that it holds, and divide all other blocks evenly, in order."""
    places = [_most_common([block], holders) for block in blocks]
    total = sum(b.weight for b, place in zip(blocks, places, strict=True) if place is None)
    spread: dict[str, list[DaskBlock]] = {worker: [] for worker in workers}
    before = 0.0
    for block, place in zip(blocks, places, strict=True):
        if place is None:
            middle = before + block.weight / 2
            place = workers[min(int(middle / total * len(workers)), len(workers) - 1)]
            before += block.weight
        spread.setdefault(place, []).append(block)
    return spread


def _share(blocks: Sequence[DaskBlock], worker: str) -> Share:
    if blocks and blocks[0].state:
        return Share(WorkerFiles({block.key: block.state for block in blocks}), [], worker)
    futures = {key: future for block in blocks for key, future in block.futures.items()}
    return Share(joined_blocks(blocks), list(futures.values()), worker)
