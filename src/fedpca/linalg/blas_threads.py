"""Limit BLAS to one thread when more threads would only get in the way.

A product on several threads waits for all of them. Some of them may not run, because other processes
are busy, or because a container may use fewer cores than it sees. Then small products take a hundred
times as long as on one thread. So a run begins on one thread, and only long products and eigenvectors
of large matrices use more. What counts as long or large depends only on the arrays, because the number
of threads may change the last bits of a result.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

from fedpca.arrays import Array

ONE_THREAD_ENTRIES = 2_000_000  # up to this matrix size, one thread is as fast as several
WORTH_A_THREAD_ENTRIES = 50_000  # products of a smaller matrix are not worth another thread
LONG_PRODUCT = 2e9  # multiplications; a shorter product ends before all threads get a turn
MAX_JOBS = 4  # with more threads, most of them wait for Python's lock

P = TypeVar("P")
T = TypeVar("T")


class threads_for_entries:
    """Limit BLAS to one thread in a ``with`` block whose arrays have at most two million entries."""

    def __init__(self, n_entries: float) -> None:
        self._is_one = n_entries <= ONE_THREAD_ENTRIES

    def __enter__(self) -> None:
        _threads.push(is_one=self._is_one)

    def __exit__(self, *_: object) -> None:
        _threads.pop()


def threads_for(*arrays: Array) -> threads_for_entries:
    """Limit BLAS to one thread in a ``with`` block, unless one of these arrays is large."""
    return threads_for_entries(max(array.size for array in arrays))


def threads_for_gram(n_rows: int, n_columns: int) -> threads_for_entries:
    """Limit BLAS to one thread while it computes A'A, unless the product is worth all threads.

    This is the only product of a site's rows that can be worth them. All others are products of small
    blocks.
    """
    return threads_for_entries(math.inf if is_long(n_rows, n_columns) else 0)


def is_long(n_rows: float, n_columns: int) -> bool:
    """Return whether A'A takes so long that all threads should share it."""
    return n_rows * n_columns**2 >= LONG_PRODUCT


def jobs_for_arrays(shapes: Sequence[tuple[float, int]]) -> int:
    """Return how many arrays of these shapes to work on at the same time, each with one BLAS thread.

    The number is 1 if any array has a block whose product is long, because long products use all
    threads. It is also 1 if the arrays are tiny on average, because then they are not worth a thread.
    """
    entries = [n * d for n, d in shapes]
    # rows are read in blocks of about this many entries
    if not shapes or any(is_long(min(n, ONE_THREAD_ENTRIES / max(d, 1)), d) for n, d in shapes):
        return 1
    is_worth = sum(entries) >= WORTH_A_THREAD_ENTRIES * len(entries)
    return min(n_threads(), len(entries), MAX_JOBS) if is_worth else 1


def n_threads() -> int:
    """Return the number of threads that BLAS would use without the limits of this module.

    Code that divides its work among Python threads uses the same number of them, each with one BLAS
    thread.
    """
    return _threads.n_unlimited()


def _n_now() -> int:
    found = [each["num_threads"] for each in _blas().info() if each["user_api"] == "blas"]
    return max(1, *found) if found else 1


def map_on_threads(work: Callable[[P], T], parts: Sequence[P]) -> list[T]:
    """Return ``work(part)`` for each part, on `n_threads` Python threads of one BLAS thread each."""
    n = min(n_threads(), len(parts))
    with threads_for_entries(0):
        if n == 1:
            return [work(part) for part in parts]
        with ThreadPoolExecutor(n) as pool:
            return list(pool.map(work, parts))


class _Threads:
    """The BLAS limits that the Python threads want; BLAS has a single limit for the whole process.

    The innermost ``with`` block of a Python thread decides what that thread wants. BLAS is limited to
    one thread if at least one Python thread wants that and no Python thread works on large arrays.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own = threading.local()
        self._wanted = {True: 0, False: 0}  # how many want one BLAS thread, how many want all
        self._limiter: Any = None
        self._n_before_limit = 1

    def n_unlimited(self) -> int:
        with self._lock:
            return _n_now() if self._limiter is None else self._n_before_limit

    def push(self, *, is_one: bool) -> None:
        stack = self._stack()
        self._change(stack[-1] if stack else None, is_one)
        stack.append(is_one)

    def pop(self) -> None:
        stack = self._stack()
        was = stack.pop()
        self._change(was, stack[-1] if stack else None)

    def _stack(self) -> list[bool]:
        if not hasattr(self._own, "stack"):
            self._own.stack = []
        stack: list[bool] = self._own.stack
        return stack

    def _change(self, before: bool | None, after: bool | None) -> None:
        if before is after:
            return
        with self._lock:
            if before is not None:
                self._wanted[before] -= 1
            if after is not None:
                self._wanted[after] += 1
            is_limited = bool(self._wanted[True]) and not self._wanted[False]
            if is_limited and self._limiter is None:
                self._n_before_limit = _n_now()
                self._limiter = _blas().limit(limits=1, user_api="blas")
            elif not is_limited and self._limiter is not None:
                self._limiter.restore_original_limits()
                self._limiter = None


_threads = _Threads()


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()
