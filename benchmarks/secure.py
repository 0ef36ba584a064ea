"""Compare rounds with secure sums and the same rounds without them.

    python benchmarks/secure.py             all problems
    python benchmarks/secure.py --quick     small problems, to see that it runs

Each figure compares rounds with and without secure sums within one run. The first problem sums blocks
of 50000 x 20 over 20 sites in this process. Its figure is the ratio of processor times, which may be at
most 3. The second problem sums a triangle of 500 features over 1000 sites. Its
figures are the work that masks add at a site, at most 50 ms, and at the coordinator, at most 100 ms.
The third problem is a fit over a server and three sites on this machine. Its figure is the work that
masks add per message in all processes, at most 10 % of a plain round. Most messages carry the question
of a round; some first ask how large the answers will be. So the third problem also prints how many more
messages a fit has with masks, and how long a message takes from end to end.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from threadpoolctl import threadpool_limits

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.arrays import Array
from fedpca.cli.demo_federation import Trial, await_port, free_port
from fedpca.coordinator.ledger import ENVELOPE
from fedpca.coordinator.record import RunRecord
from fedpca.engines import credentials
from fedpca.engines.base import EngineWrapper
from fedpca.engines.local import LocalEngine
from fedpca.linalg.dense import sine_of_angle
from fedpca.protocol.message import Message
from fedpca.solvers.contract import covariance_product
from fedpca.solvers.exact.covariance import covariance_triangle
from fedpca.solvers.standardize import count_and_sum, standardize

MAX_RATIO, MAX_SITE_MS, MAX_COORDINATOR_MS, MAX_SHARE = 3.0, 50.0, 100.0, 0.10
NAMES = ("north", "south", "west")


class Timed(EngineWrapper):
    """An engine that measures how much processor time the sites take."""

    def __init__(self, sites: Any) -> None:
        super().__init__(LocalEngine(sites))
        self.at_sites = 0.0

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, Any]]:
        answers = self.engine.ask(names, request, timeout)
        while True:
            began = time.process_time()
            answer = next(answers, None)
            self.at_sites += time.process_time() - began
            if answer is None:
                return
            yield answer


def prepared(fed: Federation, d: int) -> None:
    """Ask the questions that come before the products in every fit."""
    fed.sum(count_and_sum, features=np.empty(0, np.uint8), missing=np.int64(0))
    fed.sum(standardize, mean=np.zeros(d), scale=np.ones(d), n_products=np.int64(0))


def seconds_of_rounds(sites: Any, d: int, question: Any, n_rounds: int, secure: bool) -> Array:
    """Return the processor time of each round: the total, and the part at the sites."""
    engine, times = Timed(sites), []

    def program(fed: Federation, _: None) -> None:
        prepared(fed, d)
        rng = np.random.default_rng(0)
        for _ in range(n_rounds):
            arrays = {"mean": np.zeros(d), "scale": np.ones(d)}
            if question is covariance_product:
                arrays = {"Z": rng.standard_normal((d, 20)) / np.sqrt(20 * d)}
            began, engine.at_sites = time.process_time(), 0.0
            fed.sum(question, **arrays)
            times.append((time.process_time() - began, engine.at_sites))

    Federation(engine, secure=secure).run(program, identity={}, seed=0)
    return np.array(times)


def drawn(n_sites: int, n: int, d: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {f"site-{i:04}": rng.standard_normal((n, d)) for i in range(n_sites)}


def verdict(value: float, bar: float) -> str:
    return f"{'within' if value < bar else 'ABOVE'} the bar of {bar:g}"


def blocks(n_sites: int, n: int, d: int, n_rounds: int) -> None:
    """Print how much longer a round of blocks takes under masks."""
    rows = drawn(n_sites, n, d)
    plain, secure = [], []
    for _ in range(3):
        for times, is_secure in ((plain, False), (secure, True)):
            found = seconds_of_rounds(rows, d, covariance_product, n_rounds, is_secure)
            times.extend(found[:, 0])
    ratio = statistics.median(secure) / statistics.median(plain)
    print(
        f"{n_sites} sites with {n} rows, {d} x 20: {statistics.median(plain):.3f} s a plain round, "
        f"{statistics.median(secure):.3f} s a secure one; ratio {ratio:.2f}, "
        f"{verdict(ratio, MAX_RATIO)}",
        flush=True,
    )


def triangles(n_sites: int, d: int, n_rounds: int) -> None:
    """Print what masks add to the work of a site and of the coordinator."""
    rows = drawn(n_sites, 3, d)
    plain, secure = (
        np.median(seconds_of_rounds(rows, d, covariance_triangle, n_rounds, is_secure), axis=0)
        for is_secure in (False, True)
    )
    more = 1000 * (secure - plain)
    site, coordinator = more[1] / n_sites, more[0] - more[1]
    print(
        f"{n_sites} sites, a triangle of {d}: {site:.1f} ms more at a site, "
        f"{verdict(site, MAX_SITE_MS)} ms; {coordinator:.0f} ms more at the coordinator, "
        f"{verdict(coordinator, MAX_COORDINATOR_MS)} ms",
        flush=True,
    )


def over_flower(n: int, d: int, k: int, repeats: int) -> None:
    """Print what share of a round over Flower the masks take, and how many messages are added."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder, port = Path(temporary), free_port()
        trial, here = Trial(Console(quiet=True), folder), f"localhost:{port}"
        credentials.make_certificates(folder / "tls")
        keys = [str(credentials.make_site_key(folder, name)[1]) for name in NAMES]
        served = ("--credentials", "tls", "--port", f"{port}")
        stack.enter_context(trial.running("serve", *keys, *served, "-q"))
        await_port(port)
        for name, rows in zip(NAMES, drawn(len(NAMES), n, d).values(), strict=True):
            np.save(folder / f"{name}.npy", rows * np.linspace(3, 0.5, d))
            own = ("--data", f"{name}.npy", "--key", f"{name}.key", "--ca", "tls/ca.pem")
            stack.enter_context(trial.running("join", here, *own, "-q"))
        for solver in ("covariance", "lanczos"):
            compare_fits(here, folder, solver, k, repeats)


def compare_fits(here: str, folder: Path, solver: str, k: int, repeats: int) -> None:
    seconds: dict[bool, list[float]] = {False: [], True: []}
    models, n_messages = {}, {}
    for i in range(2 * repeats):
        is_secure = bool((i + i // 2) % 2)
        with Federation.flower(here, credentials=folder / "tls", secure=is_secure) as fed:
            models[is_secure] = FederatedPCA(k, solver=solver, random_state=0).fit(fed)
        # leave out gathered questions, which secure runs do not ask, and the first round, which
        # declares the run
        rounds = {
            h["round"]: h["seconds"]
            for h in fed.record.history[1:]
            if h["question"] != "explained_energy"
        }
        n_messages[is_secure] = messages_in(fed.record, rounds)
        seconds[is_secure].append(sum(rounds.values()) / n_messages[is_secure])
    plain, secure = (statistics.median(seconds[each]) for each in (False, True))
    angle = sine_of_angle(*(model.components_.T for model in models.values()))
    added = masking_share(folder, solver, k, plain)
    more = n_messages[True] - n_messages[False]
    print(
        f"{len(NAMES)} sites over Flower, {solver}: masks add work of {100 * added:.2f} % of a plain "
        f"round to each message, {verdict(100 * added, 100 * MAX_SHARE)} %; a fit has "
        f"{n_messages[True]} messages instead of {n_messages[False]}, {more} of them about sizes; "
        f"{plain:.3f} s a message without masks, {secure:.3f} s with "
        f"({100 * (secure / plain - 1):+.0f} %); angle between both fits {angle:.0e}",
        flush=True,
    )


def messages_in(record: RunRecord, rounds: Collection[int]) -> int:
    """Return how many messages each site received in some rounds."""
    own = (entry for entry in record.ledger if entry.how == "sent" and entry.site == NAMES[0])
    return sum(entry.field == ENVELOPE and entry.round in rounds for entry in own)


def masking_share(folder: Path, solver: str, k: int, round_s: float) -> float:
    """Return the work that masks add per message at all sites together, as a share of a round."""
    work: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(3):
        for is_secure, times in work.items():
            # the policy of these sites refuses a question that only plain runs ask at the end
            sites = {
                name: Site(folder / f"{name}.npy", name=name, policy=Policy()) for name in NAMES
            }
            fed = Federation.local(sites, secure=is_secure)
            began = time.process_time()
            model = FederatedPCA(k, solver=solver, random_state=0).fit(fed)
            times.append(time.process_time() - began)
    n_messages = messages_in(model.run_, range(1, model.run_.rounds + 1))
    more = statistics.median(work[True]) - statistics.median(work[False])
    return more / n_messages / round_s


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small problems")
    quick = parser.parse_args().quick
    with threadpool_limits(1, user_api="blas"):
        for n in (10, 50):
            blocks(*((4, n, 500, 2) if quick else (20, n, 50000, 3)))
        triangles(*((110, 30, 2) if quick else (1000, 500, 3)))
    over_flower(*((200, 20, 3, 1) if quick else (20000, 500, 20, 3)))


if __name__ == "__main__":
    main()
