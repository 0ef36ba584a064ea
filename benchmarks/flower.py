"""Time the rounds of a federation over Flower, and print what share of the time fedpca itself takes.

    python benchmarks/flower.py            3 sites of 20000 x 500; blocks of 1000 x 20 and 50000 x 20
    python benchmarks/flower.py --quick    3 sites of 2000 x 50 and the smaller block
    python benchmarks/flower.py --many 20  20 sites of 200 x 50, and the server while they wait

A server and three sites run as processes on this machine, with TLS and keys. Then the same program runs
within this process, where requests and answers are encoded, checked, saved, and logged as before, but
not sent. The time of this second run is the time that fedpca itself takes: `maths` at sites and
coordinator, and `messages`. The rest of a round's time over Flower is Flower's. Within this process,
sites take turns; over Flower, they share the cores. So the sites' time is that of the slowest site, or
the total time of all sites divided by the number of cores, whichever is longer.

A round lasts from its question to the next one. Each line has medians over all rounds with the same
question.

With `--many`, there are many small sites, so nearly all of a round is messages. The processor times of
server, sites, and fit are counted separately (from /proc). On a busy machine, or on a machine with
fewer cores than sites, they are more reliable than the clock.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from threadpoolctl import threadpool_limits

from fedpca import FederatedPCA, Federation, Site
from fedpca.cli.demo_federation import Trial, await_port, free_port
from fedpca.engines import credentials
from fedpca.engines.base import Engine
from fedpca.protocol.message import Message, encode
from fedpca.protocol.plan import DECLARE
from fedpca.protocol.question import Question
from fedpca.site.answer_log import AnswerLog
from fedpca.site.policy import TRUSTING
from fedpca.solvers.contract import covariance_product
from fedpca.solvers.standardize import count_and_sum, standardize

BOUND = 0.10
NAMES = ("north", "south", "west")
CORES = min(os.cpu_count() or 1, len(NAMES))
Program = Callable[[Federation], np.ndarray]
Rounds = tuple[np.ndarray, list[tuple[str, float, float]]]


class Within(Engine):
    """Sites within this process that answer encoded messages, and log them as `fedpca join` does."""

    names = NAMES

    def __init__(self, folder: Path) -> None:
        told: list[str] = []
        self._sites: dict[str, AnswerLog] = {}
        for name in NAMES:
            site = Site(folder / f"{name}.npy", name=name, store=folder / "within")
            self._sites[name] = AnswerLog(site, folder / f"{name}.jsonl", told.append)
        self.answering: list[list[float]] = []  # seconds of each site, a list for each round
        self.maths: list[list[float]] = []  # the part within the question's own function

    def ask(self, names: Sequence[str], request: Message, timeout: None) -> Iterator[Any]:
        def timed(question: Question, site: Site, **arrays: np.ndarray) -> Mapping[str, Any]:
            began = time.perf_counter()
            answer = question.function(site, **arrays)
            self.maths[-1].append(time.perf_counter() - began)
            return answer

        data = encode(request)
        self.answering.append([])
        self.maths.append([])
        for name in names:
            began = time.perf_counter()
            with patch.object(Question, "__call__", timed):
                reply = self._sites[name].answer(data)
            self.answering[-1].append(time.perf_counter() - began)
            yield name, reply


def fit(solver: str, k: int) -> Program:
    return lambda fed: FederatedPCA(k, solver=solver, random_state=0).fit(fed).components_


def blocks(d: int, n_rounds: int) -> Program:
    """Send a new block down and a product up in each round; Flower would send equal data only once."""

    def program(fed: Federation, start: None) -> np.ndarray:
        fed.sum(count_and_sum, features=np.empty(0, np.uint8), missing=np.int64(0))
        fed.sum(standardize, mean=np.zeros(d), scale=np.ones(d), n_products=np.int64(0))
        Z = np.random.default_rng(0).standard_normal((d, 20))
        for _ in range(n_rounds):
            Y = fed.sum(covariance_product, Z=Z)["Y"]
            Z = Y / np.linalg.norm(Y)
        return Z

    return lambda fed: fed.run(program, identity={}, seed=0)


def rounds_of(fed: Federation, program: Program) -> Rounds:
    """Run a program; return its result, and each round's question, seconds, and seconds in `ask`."""
    ask, began, ended = fed.engine.ask, [], []

    def timed(names: Any, request: Any, *more: Any) -> Iterator[tuple[str, Any]]:
        if request.header["question"] == DECLARE:  # not a round
            yield from ask(names, request, *more)
            return
        began.append(time.perf_counter())
        yield from ask(names, request, *more)
        ended.append(time.perf_counter())

    with patch.object(fed.engine, "ask", timed):
        model = program(fed)
    ends = [*began[1:], time.perf_counter()]
    questions = (entry["question"] for entry in fed.record.history)
    times = zip(questions, began, ended, ends, strict=True)
    return model, [(question, end - begin, done - begin) for question, begin, done, end in times]


def at_once(seconds: list[float]) -> float:
    """Return the seconds that sites take if they work at the same time on this machine's cores."""
    return max(*seconds, sum(seconds) / CORES)


def compare(title: str, program: Program, over_flower: list[Rounds], folder: Path) -> None:
    """Compare the rounds of a program over Flower with those within this process."""
    lines: dict[str, list[tuple[float, float, float]]] = {}  # seconds: total, maths, messages
    for model, carried in over_flower:
        within = Within(folder)
        same, rounds = rounds_of(Federation(within), program)
        if not np.array_equal(model, same):
            raise SystemExit(f"{title}: the model over Flower differs from that of one process")
        at_sites = zip(within.answering, within.maths, strict=True)
        for over, here, (answering, maths) in zip(carried, rounds, at_sites, strict=True):
            (question, whole, _), (_, ours, asking) = over, here
            work = ours - asking + at_once(maths)
            messages = asking - sum(answering) + at_once(answering) - at_once(maths)
            lines.setdefault(question, []).append((whole, work, messages))
    print(f"\n{title}: the model is that of one process, bit for bit")
    print(f"  {'':20s}rounds   s/round     maths  messages  Flower's      ours")
    total = np.zeros(4)  # rounds, and seconds as above
    for question, parts in lines.items():
        n_rounds = len(parts) // len(over_flower)
        medians = np.median(parts, axis=0)
        total += n_rounds * np.array([1, *medians])
        print(line(question, n_rounds, *medians))
    bound = f"   (bound {BOUND:.2f})"
    print(line("all, a round", int(total[0]), *total[1:] / total[0]) + bound)


def line(name: str, n_rounds: int, whole: float, maths: float, messages: float) -> str:
    """Return a line with the seconds of a round, and their division into maths, messages, and rest."""
    return (
        f"  {name:20s}{n_rounds:6d}{whole:10.4f}{maths:10.4f}{messages:10.4f}"
        f"{whole - maths - messages:10.4f}{(maths + messages) / whole:10.3f}"
    )


def processor_s(*pids: int) -> float:
    """Return the seconds of processor time that processes have taken."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def many(n_sites: int, idle_s: float, n_rounds: int) -> None:
    """Print what waiting sites cost the server, and what a round with all of them takes."""
    names = [f"site-{i:03d}" for i in range(1, n_sites + 1)]
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder, port = Path(temporary), free_port()
        here, trial = f"localhost:{port}", Trial(Console(quiet=True), folder)
        credentials.make_certificates(folder / "tls")
        keys = [str(credentials.make_site_key(folder, name)[1]) for name in names]
        (folder / "policy.toml").write_text(TRUSTING.to_text())
        draw(folder, 200, 50, names)
        served = ("--credentials", "tls", "--port", f"{port}", "-q")
        server = stack.enter_context(trial.running("serve", *keys, *served)).pid
        await_port(port)
        sites = []
        for name in names:
            own = ("--data", f"{name}.npy", "--key", f"{name}.key", "--ca", "tls/ca.pem")
            join = trial.running("join", here, *own, "--policy", "policy.toml", "-q")
            sites.append(stack.enter_context(join).pid)
            time.sleep(0.5)  # if all started at the same time, all would be late
        options = {"credentials": folder / "tls", "wait": 600.0}
        fed = stack.enter_context(Federation.flower(here, **options))
        time.sleep(10)  # until the last site is idle
        began, before = time.perf_counter(), processor_s(server)
        time.sleep(idle_s)
        share = (processor_s(server) - before) / (time.perf_counter() - began)
        print(f"{n_sites} waiting sites: the server takes {100 * share:.2f} % of a core")

        def now() -> np.ndarray:
            own = time.process_time()
            clocks = (time.perf_counter(), own, processor_s(server), processor_s(*sites))
            return 1000 * np.array(clocks)

        blocks(50, 2)(fed)  # the first rounds open connections
        before = now()
        blocks(50, n_rounds - 2)(fed)  # `blocks` adds two rounds of its own
        whole, fit_ms, server_ms, sites_ms = (now() - before) / n_rounds
        print(
            f"a round with {n_sites} sites: {whole:.0f} ms; processor: server {server_ms:.0f} ms, "
            f"sites {sites_ms:.0f} ms together, fit {fit_ms:.0f} ms"
        )


def draw(folder: Path, n: int, d: int, names: Sequence[str] = NAMES) -> None:
    """Write the rows of each site to a file."""
    for seed, name in enumerate(names):
        rng = np.random.default_rng(seed)
        np.save(folder / f"{name}.npy", rng.standard_normal((n, d)) * np.linspace(3, 0.5, d) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--many", type=int, metavar="SITES")
    given = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the same for all processes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the processes, too
    if given.many:
        many(given.many, *((5.0, 4) if given.quick else (60.0, 30)))
        return
    quick = given.quick
    n, d, k, repeats = (2000, 50, 5, 1) if quick else (20000, 500, 20, 3)
    cases = {
        (n, d): {f"lanczos, {n} x {d} a site, k={k}": fit("lanczos", k)},
        (50, 1000): {"1000 x 20 down and up": blocks(1000, 3 if quick else 9)},
    }
    if not quick:
        cases[n, d][f"covariance, {n} x {d} a site, k={k}"] = fit("covariance", k)
        cases[50, 50000] = {"50000 x 20 down and up": blocks(50000, 5)}
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        stack.enter_context(threadpool_limits(1, user_api="blas"))
        folder, port = Path(temporary), free_port()
        tls, here = folder / "tls", f"localhost:{port}"
        trial = Trial(Console(quiet=True), folder)
        credentials.make_certificates(tls)
        keys = [str(credentials.make_site_key(folder, name)[1]) for name in NAMES]
        served = ("--credentials", "tls", "--port", f"{port}")
        stack.enter_context(trial.running("serve", *keys, *served, "-q"))
        await_port(port)
        # blocks follow no estimator's plan, and the sites within this process require no plan either
        (folder / "policy.toml").write_text(TRUSTING.to_text())
        for (rows, features), programs in cases.items():
            draw(folder, rows, features)
            with ExitStack() as sites:
                for site in NAMES:
                    own = ("--data", f"{site}.npy", "--key", f"{site}.key", "--ca", "tls/ca.pem")
                    own += ("--policy", "policy.toml")
                    sites.enter_context(trial.running("join", here, *own, "-q"))
                fed = sites.enter_context(Federation.flower(here, credentials=tls))
                done = [[rounds_of(fed, p) for _ in range(repeats)] for p in programs.values()]
            for (title, program), over_flower in zip(programs.items(), done, strict=True):
                compare(title, program, over_flower, folder)


if __name__ == "__main__":
    main()
