"""Compare the components of genotypes at three sites with those of plink2 on the pooled genotypes.

    python benchmarks/genotypes.py                                      10000 samples, 100000 variants
    python benchmarks/genotypes.py --samples 2000 --variants 20000      other sizes
    python benchmarks/genotypes.py --approx                             with plink2 --pca approx
    python benchmarks/genotypes.py --folder FOLDER                      keep files, and reuse them
    python benchmarks/genotypes.py --quick                              small, to see that it runs

The script simulates three cohorts with missing genotypes. One cohort has flipped alleles, and each
cohort has variants of its own. The script runs `fedpca fit` and `fedpca transform` on the cohorts, and
`plink2 --pca meanimpute` on the pooled variants in common, each in its own process with two threads. It
compares eigenvalues, eigenvectors, seconds, processor seconds, and peaks of memory. It needs plink2.

The time for the relationship matrix of `--pca` grows with the square of the number of samples. Above
5000 samples, plink2 advises `--pca approx`, which multiplies by random vectors instead.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

K = 10
MISSING = 0.02
OWN = 50  # one in this many variants belongs to only one cohort
FLIPPED = 3  # one in this many variants is flipped in the second cohort
N_THREADS = "2"
MAGIC = b"\x6c\x1b\x01"
FLIPPED_CODE = np.array([3, 1, 2, 0], np.uint8)


def simulate(folder: Path, n: int, d: int) -> list[Path]:
    """Write three cohorts and the pooled fileset with the variants in common; return the cohorts."""
    rng = np.random.default_rng(0)
    population = rng.choice(12, size=n, p=np.arange(12, 0, -1) / 78)
    parts = np.array_split(np.arange(n), 3)
    beds = [folder / f"cohort{i}.bed" for i in range(3)]
    pooled = folder / "pooled.bed"
    files = {bed: (bed.open("wb"), bed.with_suffix(".bim").open("w")) for bed in (*beds, pooled)}
    for bed, _ in files.values():
        bed.write(MAGIC)
    for j in range(d):
        ancestral = rng.uniform(0.1, 0.9)
        spread = np.sqrt(0.05 * ancestral * (1 - ancestral))
        frequency = np.clip(ancestral + spread * rng.standard_normal(12), 0.02, 0.98)[population]
        copies = (rng.random((2, n), dtype=np.float32) < frequency.astype(np.float32)).sum(axis=0)
        codes = np.array([3, 2, 0], np.uint8)[copies]
        codes[rng.random(n, dtype=np.float32) < MISSING] = 1
        is_own = j % OWN == OWN - 1
        for i, (path, part) in enumerate(zip((*beds, pooled), (*parts, slice(None)), strict=True)):
            if is_own and i != j // OWN % 3:
                continue
            bed, bim = files[path]
            is_flipped = i == 1 and j % FLIPPED == 0
            letters = "G\tA" if is_flipped else "A\tG"
            bim.write(f"1\trs{j}\t0\t{j + 1}\t{letters}\n")
            bed.write(packed(FLIPPED_CODE[codes[part]] if is_flipped else codes[part]))
    for bed, bim in files.values():
        bed.close()
        bim.close()
    for path, part in zip((*beds, pooled), (*parts, np.arange(n)), strict=True):
        path.with_suffix(".fam").write_text("".join(f"f i{i} 0 0 0 -9\n" for i in part))
    return beds


def packed(codes: np.ndarray) -> bytes:
    whole = np.zeros(-(-len(codes) // 4) * 4, np.uint8)
    whole[: len(codes)] = codes
    shifted = whole.reshape(-1, 4) << np.array([0, 2, 4, 6], np.uint8)
    return shifted.sum(axis=1, dtype=np.uint8).tobytes()


class Cost(NamedTuple):
    """What a command took."""

    seconds: float
    processor: float  # seconds, which other processes affect less
    memory: float  # MB at the peak

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.processor:.1f} s of processor, {self.memory:.0f} MB"


def timed(command: list[str], folder: Path) -> Cost:
    """Run a command, and return what it took."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": N_THREADS}
    start = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {errors}")
    processor = usage.ru_utime + usage.ru_stime
    return Cost(time.perf_counter() - start, processor, usage.ru_maxrss / 1024)


def kept(path: Path, command: list[str]) -> Cost:
    """Return what a command took; run it only if no earlier run has kept the figures."""
    if not path.exists():
        path.write_text(json.dumps(timed(command, path.parent)))
    return Cost(*json.loads(path.read_text()))


def eigenvectors(path: Path) -> np.ndarray:
    return np.loadtxt(path, usecols=range(2, 2 + K), skiprows=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--variants", type=int, default=100_000)
    parser.add_argument("--approx", action="store_true", help="compare with plink2 --pca approx")
    parser.add_argument("--folder", type=Path, help="keep cohorts and what plink2 took")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    n, d = (300, 2000) if given.quick else (given.samples, given.variants)
    plink2 = shutil.which("plink2")
    if plink2 is None:
        raise SystemExit("this comparison needs plink2; install it with: apt-get install plink2")
    fedpca = [sys.executable, "-m", "fedpca"]
    with ExitStack() as at_end:
        folder = given.folder or Path(at_end.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        beds = [folder / f"cohort{i}.bed" for i in range(3)]
        if not (folder / "pooled.fam").exists():
            simulate(folder, n, d)
        common = len((folder / "pooled.bim").read_text().splitlines())
        print(f"{n:,} samples at 3 sites, {common:,} variants in common, {MISSING:.0%} missing")
        options = ["--binomial", "--missing", "mean", "-k", str(K), "--solver", "lanczos"]
        output = ["--plink", "ours", "-o", "m.fedpca", "--seed", "0", "--quiet", "--force"]
        fit = timed([*fedpca, "fit", *map(str, beds), *options, *output], folder)
        scores = [
            timed(
                [
                    *fedpca,
                    "transform",
                    "m.fedpca",
                    str(bed),
                    "-o",
                    f"{bed.stem}.eigenvec",
                    "--force",
                ],
                folder,
            )
            for bed in beds
        ]
        which, more = ("approx", ["approx"]) if given.approx else ("theirs", [])
        pca = ["--pca", str(K), *more, "meanimpute", "--threads", N_THREADS, "--out", which]
        theirs = kept(folder / f"{which}.json", [plink2, "--bfile", "pooled", *pca])
        values = [(folder / f"{who}.eigenval").read_text().split() for who in ("ours", which)]
        same = sum(a == b for a, b in zip(*values, strict=True))
        U = np.vstack([eigenvectors(folder / f"{bed.stem}.eigenvec") for bed in beds])
        V = eigenvectors(folder / f"{which}.eigenvec")
        apart = np.abs(U - np.sign((U * V).sum(axis=0)) * V).max()
        each = list(zip(fit, *scores, strict=True))
        transform = Cost(sum(each[0][1:]), sum(each[1][1:]), max(each[2][1:]))
        ours = Cost(sum(each[0]), sum(each[1]), max(each[2]))
        print(f"eigenvalues equal in all printed digits: {same} of {K}")
        print(f"largest difference of eigenvectors: {apart:.1e}")
        print(f"fedpca fit: {fit}")
        print(f"fedpca transform, three times: {transform}")
        print(f"plink2 --pca{' approx' * given.approx}: {theirs}")
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        time_ratio, processor_ratio, memory_ratio = ratios
        print(f"fedpca / this: {time_ratio:.2f} of the seconds, {memory_ratio:.2f} of the MB")
        print(f"and {processor_ratio:.2f} of the processor's seconds")


if __name__ == "__main__":
    main()
