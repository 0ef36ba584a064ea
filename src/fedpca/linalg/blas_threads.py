"""Limit BLAS to one thread when its idle threads would only get in the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

from fedpca.arrays import Array

ONE_THREAD_ENTRIES = 2_000_000  # one thread is as fast as several up to this matrix size


@contextmanager
def threads_for(*arrays: Array) -> Iterator[None]:
    """Limit BLAS to one thread while it works on small arrays.

    Idle BLAS threads briefly keep spinning on cores that this process's sites need next.
    """
    if max(array.size for array in arrays) > ONE_THREAD_ENTRIES:
        yield
        return
    _one_thread.enter()
    try:
        yield
    finally:
        _one_thread.leave()


class _OneThread:
    """A count of the callers that want one thread; the limit applies to the whole process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_inside = 0
        self._limiter: Any = None

    def enter(self) -> None:
        with self._lock:
            if not self._n_inside:
                self._limiter = _blas().limit(limits=1, user_api="blas")
            self._n_inside += 1

    def leave(self) -> None:
        with self._lock:
            self._n_inside -= 1
            if not self._n_inside:
                self._limiter.restore_original_limits()


_one_thread = _OneThread()


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()
