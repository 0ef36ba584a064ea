"""Compare plans with real fits: how many rounds they take, and how much memory.

    python benchmarks/plans.py                 both
    python benchmarks/plans.py rounds          rounds of iterating fits
    python benchmarks/plans.py memory          memory at a site and at the coordinator
    python benchmarks/plans.py --quick         small sizes, to see that it runs

`rounds` draws rows several times from the distribution that a plan assumes, and fits them. It prints
the plan's rounds divided by the median of the fits' rounds. It also prints the plan's range of rounds,
and the fewest and the most rounds of the fits, because with some solvers, fits differ far more from
each other than from the plan. At the end, it counts the medians within 30 % of the plan, and the fits
within the plan's range.

`memory` lets sites answer encoded messages one after another, and asks Linux how far resident memory
rises, both while a site answers, including what the site keeps between questions, and while the
coordinator works. Each fit runs in a process of its own, after a small fit with the same method. So the
program, the buffers of BLAS, and the rows are in memory before the fit, and do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

import fedpca
from fedpca import FederatedPCA, Federation, PersonalizedPCA, RobustPCA, Site
from fedpca.engines.base import Engine
from fedpca.protocol.message import Message, decode, encode
from fedpca.solvers.planning.made_up import OUTLIER_SIZE

QUIET = {"flops": 1e10, "read_rate": 1e9}  # so that nothing is measured
ROUNDS_OF = {
    "lanczos": lambda seed: FederatedPCA(3, solver="lanczos", random_state=seed),
    "subspace-iteration": lambda seed: FederatedPCA(
        3, solver="subspace-iteration", random_state=seed
    ),
    "local-power": lambda seed: FederatedPCA(3, solver="local-power", random_state=seed),
    "faps": lambda seed: FederatedPCA(3, solver="faps", random_state=seed),
    "power": lambda seed: PersonalizedPCA(2, 1, random_state=seed),
    "stiefel": lambda seed: PersonalizedPCA(2, 1, solver="stiefel", random_state=seed),
    "polar": lambda seed: PersonalizedPCA(2, 1, solver="polar", random_state=seed),
    "auto": lambda seed: RobustPCA(3, random_state=seed),
    "threshold": lambda seed: RobustPCA(3, solver="threshold", random_state=seed),
    "auto, a bound of 5": lambda seed: RobustPCA(max_components=5, random_state=seed),
    "least-squares": lambda seed: RobustPCA(3, solver="least-squares", random_state=seed),
}
SIZES = {"north": 900, "south": 700, "west": 500, "east": 300}


def spectra(d: int) -> dict[str, np.ndarray]:
    """Return spectra by name: the variances along three components, and the variances of the rest."""
    j = np.arange(1.0, d + 1)
    return {
        "1, 1/2, 1/3, ...": 1 / j,
        "falling by 1.2": 1.2**-j + 1e-3,
        "three, then noise": np.r_[np.full(3, 4.0), np.full(d - 3, 0.3)],
    }


def basis(rng: np.random.Generator, d: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def sites_with(seed: int, variances: np.ndarray, n_shared: int | None) -> dict[str, np.ndarray]:
    """Draw sites' rows with n_shared common directions; if None, all are common, plus outliers."""
    rng, d = np.random.default_rng(seed), len(variances)
    B, size, made = basis(rng, d), np.sqrt(variances.sum() / d), {}
    offset = 3 * size * rng.standard_normal(d)
    for name, n in SIZES.items():
        own = B
        if n_shared is not None:
            own = np.hstack([B[:, :n_shared], B[:, n_shared:] @ basis(rng, d - n_shared)])
        X = (rng.standard_normal((n, d)) * np.sqrt(variances)) @ own.T + offset
        if n_shared is None:
            is_outlier = rng.random((n, d)) < 0.05
            X[is_outlier] += size * rng.uniform(-OUTLIER_SIZE, OUTLIER_SIZE, is_outlier.sum())
        made[name] = X
    return made


def rounds(quick: bool) -> None:
    repeats, features, n_spectra = (1, (20,), 1) if quick else (9, (20, 60, 200), 3)
    print(f"\nplanned rounds over the median of {repeats} fits, with the smallest and the largest")
    head = f"{'planned':>8s}{'range':>15s}{'ratio':>7s}   fits"
    print(f"  {'solver':20s}{'variances':>20s}{'features':>9s}{head}")
    ratios: dict[str, list[float]] = {}
    inside: dict[str, list[bool]] = {}
    solvers = list(ROUNDS_OF.items())[: 5 if quick else None]  # the last ones take many rounds
    for name, make in solvers:
        for d in features:
            for kind, variances in list(spectra(d).items())[-n_spectra:]:
                model = make(0)
                planned = fedpca.plan(
                    SIZES, d, model, solvers=[model.solver], variances=variances, **QUIET
                ).solvers[0]
                n_shared = {PersonalizedPCA: 2, RobustPCA: None}.get(type(model), d)
                taken = [
                    make(seed)
                    .fit(Federation.local(sites_with(100 + seed, variances, n_shared)))
                    .run_.rounds
                    for seed in range(repeats)
                ]
                ratio = planned.rounds / statistics.median(taken)
                ratios.setdefault(name, []).append(ratio)
                fewest, most = planned.fewest_rounds, planned.most_rounds
                inside.setdefault(name, []).extend(fewest <= each <= most for each in taken)
                print(
                    f"  {name:20s}{kind:>20s}{d:9d}{planned.rounds:8d}{f'{fewest} to {most}':>15s}"
                    f"{ratio:7.2f}   {min(taken)} to {max(taken)}",
                    flush=True,
                )
    for name, each in ratios.items():
        within = sum(abs(ratio - 1) <= 0.3 for ratio in each)
        own = inside[name]
        print(
            f"  {name:20s} within 30 %: {within} of {len(each)}; "
            f"fits in the range: {sum(own)} of {len(own)}"
        )


class Traced(Engine):
    """An engine that measures the memory of its sites apart from that of the coordinator."""

    def __init__(self, rows: Mapping[str, np.ndarray]) -> None:
        self._sites = {name: Site(own, name=name) for name, own in rows.items()}
        self.names = list(rows)
        self.kept = dict.fromkeys(rows, 0)  # bytes that each site keeps between questions
        self.site_peak = self.server_peak = 0
        self._before = resident()
        forget_peak()

    def close(self) -> None:
        self._coordinator_worked()

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, bytes]]:
        data = encode(request)
        for name in names:
            self._coordinator_worked()
            start = resident()
            answer = encode(self._sites[name].answer(decode(data)))
            self.site_peak = max(self.site_peak, self.kept[name] + peak() - start + len(data))
            self.kept[name] += resident() - start - len(answer)
            forget_peak()
            yield name, answer
            del answer

    def _coordinator_worked(self) -> None:
        """Take note of the peak since a site answered."""
        own = peak() - self._before - sum(self.kept.values())
        self.server_peak = max(self.server_peak, own)
        forget_peak()


def resident(word: str = "VmRSS:") -> int:
    """Return the process's resident memory in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(word)))


def peak() -> int:
    return resident("VmHWM:")


def forget_peak() -> None:
    """Reset the peak of memory to what is resident now (Linux: proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


SHAPES = ((3, 20_000, 100), (3, 4000, 800), (5, 400, 4000))
QUICK = ((3, 2000, 60),)
MAX_SQUARE = 1000  # with more features, solvers that send d x d numbers are left out
SQUARE = ("covariance", "tsqr", "faps")


def models() -> dict[str, object]:
    """Return an estimator for each solver whose memory is measured."""
    more = {"random_state": 0, "max_rounds": 12}
    some = {f"pca {name}": FederatedPCA(5, solver=name, **more) for name in fedpca.solvers.SOLVERS}
    for name in ("power", "stiefel"):
        some[f"personalized {name}"] = PersonalizedPCA(3, 2, solver=name, **more)
    for name in ("auto", "least-squares"):
        some[f"robust {name}"] = RobustPCA(5, solver=name, **more)
    return some


def memory(quick: bool) -> None:
    print("\nmemory in megabytes: planned, measured, and their ratio")
    print(f"  {'':22s}{'at a site':>30s}{'at the coordinator':>30s}")
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    ratios: list[float] = []
    for shape in QUICK if quick else SHAPES:
        n_sites, n, d = shape
        print(f"  {n_sites} sites of {n:,} x {d:,}")
        for name in models():
            if d > MAX_SQUARE and name.split()[1] in SQUARE:
                continue
            order = [sys.executable, __file__, "one", json.dumps([name, *shape])]
            done = subprocess.run(order, env=env, check=True, capture_output=True, text=True)
            pairs = json.loads(done.stdout)
            cells = "".join(f"{a / 1e6:11.2f}{b / 1e6:10.2f}{a / b:9.2f}" for a, b in pairs)
            print(f"  {name:22s}{cells}", flush=True)
            ratios += [a / b for a, b in pairs if max(a, b) > LEAST_BYTES]
    within = sum(abs(ratio - 1) <= 0.3 for ratio in ratios)
    print(f"  within 30 %, of those above {LEAST_BYTES / 1e6:g} MB: {within} of {len(ratios)}")


LEAST_BYTES = 2e6  # below this, the interpreter's own memory matters as much as the fit's


def one(name: str, n_sites: int, n: int, d: int) -> None:
    """Print the planned and the measured memory of one fit, at a site and at the coordinator."""
    rng, model = np.random.default_rng(0), models()[name]
    spread = np.sqrt(1 / np.arange(1, d + 1))
    rows = {f"site-{i}": rng.standard_normal((n, d)) * spread for i in range(1, n_sites + 1)}
    solver = name.split()[1]
    sizes = {site: len(own) for site, own in rows.items()}
    plan = fedpca.plan(sizes, d, model, solvers=[solver], **QUIET).solvers[0]
    model.fit(Federation(Traced({site: own[:300, :40] for site, own in rows.items()})))
    engine = Traced(rows)
    model.fit(Federation(engine))
    engine.close()
    pairs = [
        (plan.site_memory, engine.site_peak),
        (plan.server_memory, engine.server_peak),
    ]
    print(json.dumps(pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("cases", nargs="*", choices=["rounds", "memory", []], default=[])
    parser.add_argument("--quick", action="store_true")
    warnings.simplefilter("ignore")  # some fits run out of rounds
    if sys.argv[1:2] == ["one"]:
        one(*json.loads(sys.argv[2]))
        return
    given = parser.parse_args()
    for case in given.cases or ["rounds", "memory"]:
        {"rounds": rounds, "memory": memory}[case](given.quick)


if __name__ == "__main__":
    main()
