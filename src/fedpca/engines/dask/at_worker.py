"""Open a site at a worker, answer questions there, and add up answers.

Every function here is a task. Its result depends only on its arguments, so any worker can compute it
again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import dask
import numpy as np

from fedpca.engines.base import Summand, Total
from fedpca.errors import REPORTED_BY_SITES, InputError, MessageError, SiteFailed
from fedpca.protocol.message import Message, compose
from fedpca.protocol.question import find_question
from fedpca.rows.reading import Reading
from fedpca.site.conversation import refusal
from fedpca.site.memory import Checkpoint
from fedpca.site.site import Site
from fedpca.site.source import in_pieces, states_of_paths

log = logging.getLogger("fedpca.site")

TaskKey = Hashable  # of a task


@dataclass(frozen=True)
class Blocks:
    """The blocks of rows that one site reads, each the result of a small task graph.

    Parameters
    ----------
    graphs : list of (key, graph)
        The key of each block, and the tasks that lead to it.
    n_rows : int, optional
        The total number of rows, if known.
    held : dict
        The results, by key, that the cluster holds in memory and from which the graphs start.
    """

    graphs: Sequence[tuple[TaskKey, Mapping[TaskKey, Any]]]
    n_rows: int | None
    held: Mapping[TaskKey, Any]

    def open(self) -> Any:
        """Return a source of rows that computes one block at a time."""
        load = [partial(self._load, key, graph) for key, graph in self.graphs]
        are_held = all(key in self.held for key, _ in self.graphs)
        return in_pieces(load, self.n_rows, are_held=are_held)

    def _load(self, key: TaskKey, graph: Mapping[TaskKey, Any]) -> Any:
        if key in self.held:
            return self.held[key]
        return dask.get({**self.held, **graph}, key)


@dataclass(frozen=True)
class WorkerFiles:
    """The files that one site reads, and their states as the workers see them."""

    states: Mapping[Path, str]

    def open(self) -> list[str]:
        """Return the paths."""
        return [str(path) for path in self.states]

    def refuse_changed(self) -> None:
        """Refuse files that have changed, since a copy of the site must read the same rows."""
        if states_of_paths(self.open()) != self.states:
            raise InputError(
                "a file has changed since the federation was created; create a new federation"
            )


class SiteAtWorker:
    """A site that is opened when it is first asked; a copy at another worker opens the rows again."""

    def __init__(self, name: str, rows: Blocks | WorkerFiles, reading: Reading) -> None:
        self._name, self._rows, self._reading = name, rows, reading
        self._site: Site | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return SiteAtWorker, (self._name, self._rows, self._reading)

    def answer(
        self, before: Checkpoint | None, request: Message
    ) -> tuple[Checkpoint | None, Message]:
        """Return the checkpoint after a question, and the answer or an error."""
        with self._lock:
            try:
                if isinstance(self._rows, WorkerFiles):
                    self._rows.refuse_changed()
                if self._site is None:
                    self._site = Site(self._rows.open(), name=self._name, reading=self._reading)
                    # whoever asks owns the rows, so the run's seed may determine random signs
                    self._site.is_in_process = True
                return self._site.answer_from(before, request)
            except tuple(REPORTED_BY_SITES.values()) as error:
                return before, refusal(self._name, request.header, error)
            except Exception as error:  # raised by the code that computes a block
                log.exception("site %s could not open its rows", self._name)
                text = f"{type(error).__name__}; see the worker's log for details"
                return before, refusal(self._name, request.header, SiteFailed(text))


@dataclass(frozen=True)
class Remembered:
    """What a site remembers after a question, and its answer."""

    checkpoint: Checkpoint | None
    reply: Message


def open_site(name: str, rows: Blocks | WorkerFiles, reading: Reading, *held: Any) -> SiteAtWorker:
    """Return a site; ``held`` has the results of the futures that its blocks start from."""
    if isinstance(rows, Blocks):
        rows = replace(rows, held=dict(zip(rows.held, held, strict=True)))
    return SiteAtWorker(name, rows, reading)


def ask(
    site: SiteAtWorker, before: Remembered | None, request: Message, package: str
) -> Remembered:
    """Ask a site a question that changes its memory; the module ``package`` defines the question."""
    import_module(package)  # registers the question, even if an added solver defines it
    checkpoint, reply = site.answer(None if before is None else before.checkpoint, request)
    return Remembered(checkpoint, reply)


def ask_only(
    site: SiteAtWorker, before: Remembered | None, request: Message, package: str
) -> Message:
    """Ask a site a question that changes nothing."""
    return ask(site, before, request, package).reply


def reply_of(remembered: Remembered) -> Message:
    """Return only the answer; what the site remembers stays where it is."""
    return remembered.reply


def add_up(*parts: Message | Total) -> Total:
    """Add up the answers of sites, and sums of such answers, in the order given."""
    arrays: dict[str, Any] = {}
    replies: dict[str, Summand | Message | Any] = {}
    sums: dict[str, int] = {}
    for part in parts:
        one = part if isinstance(part, Total) else _alone(part)
        replies |= one.replies
        sums |= one.sums
        if not arrays:
            arrays = {name: np.array(array) for name, array in one.arrays.items()}
        elif one.arrays:
            _add(arrays, one.arrays)
    added = [name for name, reply in replies.items() if isinstance(reply, Summand)]
    if len(added) > 1:
        header = replies[added[0]].header | {"site": "", "sites": len(added)}
        label = f"(sum of {added[0]} to {added[-1]})"  # in the ledger
        sums[label] = compose(header, arrays).n_bytes
    return Total(arrays, replies, sums)


def _alone(reply: Message) -> Total:
    """Return one site's answer as a total; an error becomes a total without arrays."""
    name = str(reply.header["site"])
    if "error" in reply.header:
        return Total({}, {name: reply}, {})
    told = find_question(reply.header["question"]).told(reply.arrays)
    return Total(reply.arrays, {name: Summand(reply.header, reply.n_bytes, told)}, {})


def _add(total: dict[str, Any], arrays: Mapping[str, Any]) -> None:
    for name, array in arrays.items():
        if array.shape != total[name].shape:
            raise MessageError(
                f"field {name!r} has shape {array.shape} at one site and {total[name].shape} at "
                "another; install the same version of fedpca at all workers"
            )
        total[name] += array
