"""Check that a change to the code changes no result, by comparing fits on fixed data bit by bit.

    git switch --detach BEFORE && python benchmarks/same_bits.py --write before.json
    git switch - && python benchmarks/same_bits.py --compare before.json

Each case is one fit. The script saves the fitted arrays, the ledger, and the records of the journal;
arrays are saved as checksums. Bits depend on the machine and its libraries, so run both commands on the
same machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from fedpca import FederatedPCA, Federation, PersonalizedPCA, RobustPCA, StreamingPCA
from fedpca.protocol.message import PREFIX_BYTES, decode, encoded_size
from fedpca.solvers import SOLVERS, Average, Dcf, Faps, LocalPower, Merge, Polar, Stiefel

Case = Callable[[Path], dict[str, Any]]
# questions and fields that were renamed after the earlier results may have been written
RENAMED = {
    "introduce": "column_names",
    "totals": "count_and_sum",
    "spread": "squares",
    "settle": "standardize",
    "enter_frame": "begin_personalized",
    "keep_local": "finish_personalized",
    "enter_robust": "begin_robust",
    "keep_sparse": "finish_robust",
    "centre": "center",
}
RENAMED_SOLVERS = {"power": "subspace-iteration"}  # of `FederatedPCA`, in the names of cases
# the header of a site's file describes the fit, so its length depends on the names of parameters
FREE_LENGTHS = ("header",)


def tables(seed: int = 0, n: int = 240, d: int = 14) -> dict[str, Any]:
    """Draw rows of different sites; one is empty, one is small, and each has its own column order."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * np.geomspace(4, 0.2, d) @ rng.standard_normal((d, d)) + 30
    X[:, 3] = 7.25
    X = X[np.argsort(X[:, 0])]
    parts = np.split(X, [0, 1, 60, 170])
    return {
        f"s{i}": pa.table({f"c{j}": part[:, j] for j in np.roll(np.arange(d), i)})
        for i, part in enumerate(parts)
    }


def sparse(seed: int = 1) -> dict[str, Any]:
    """Draw sparse rows, with more columns than any site has rows."""
    rng = np.random.default_rng(seed)
    X = sp.random_array((90, 120), density=0.1, format="csr", rng=rng)
    X = (X @ sp.diags_array(np.geomspace(5, 0.5, 120))).tocsr()
    return {"a": X[:40], "b": X[40:41], "c": X[41:]}


def personal(seed: int = 2, d: int = 12) -> dict[str, Any]:
    """Draw rows with two shared directions, and two local directions for each site."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((2, d))
    sites = {}
    for i in range(5):
        own = rng.standard_normal((2, d))
        n = 40 + 10 * i
        rows = rng.standard_normal((n, 2)) @ shared * 3 + rng.standard_normal((n, 2)) @ own
        sites[f"s{i}"] = rows + 0.1 * rng.standard_normal((n, d)) + i
    return sites


def corrupted(seed: int = 3, n: int = 150, d: int = 40) -> dict[str, Any]:
    """Draw low-rank rows with outliers, missing values, noise and a constant column."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3)) * [3, 2, 1] @ rng.standard_normal((3, d)) + 5
    X += 0.01 * rng.standard_normal((n, d))
    X = np.where(rng.random((n, d)) < 0.05, X + 80 * rng.choice([-1, 1], (n, d)), X)
    X[rng.random((n, d)) < 0.03] = np.nan
    X[:, 5] = 2.5
    return dict(zip("abcd", np.split(X, [30, 31, 90]), strict=True))


def cases() -> Iterator[tuple[str, Case]]:
    """Yield the name of every case and its fit."""
    for solver in SOLVERS:
        for scale in (False, True):
            model = FederatedPCA(3, solver=solver, scale=scale, random_state=0, max_rounds=3000)
            yield f"{solver} scale={scale}", over(model, tables())
        model = FederatedPCA(4, solver=solver, center=False, random_state=1, max_rounds=3000)
        yield f"{solver} sparse", over(model, sparse())
        model = FederatedPCA(0.9, solver=solver, random_state=2, max_rounds=3000)
        yield f"{solver} share", over(model, tables(4))
    for n_components in ("mp", "gap", None):
        model = FederatedPCA(n_components, random_state=0)
        yield f"auto {n_components}", over(model, tables(5))
    for name, options in OPTIONS.items():
        model = FederatedPCA(3, random_state=0, max_rounds=3000, **options)
        yield name, over(model, tables())
    for exact in (True, False):
        yield f"stream exact={exact}", streamed(StreamingPCA(3, exact=exact))
        model = StreamingPCA(3, exact=exact, forgetting=0.9, center=False)
        yield f"stream exact={exact} forgetting", streamed(model)
    for rank in ("mp", "energy", "interval"):
        yield f"stream rank={rank}", streamed(StreamingPCA(rank=rank, max_components=8, cooldown=1))
    for name, options in METHODS.items():
        for gather in (False, True):
            model = PersonalizedPCA(2, 2, random_state=0, gather=gather, max_rounds=60, **options)
            yield f"personalized {name} gather={gather}", over(model, personal())
    for name, options in ROBUST.items():
        yield f"robust {name}", over(RobustPCA(random_state=0, **options), corrupted())


OPTIONS: dict[str, dict[str, Any]] = {
    "faps decrease": {"solver": Faps(local_steps="decrease", penalty=0.3)},
    "faps objective": {"solver": Faps(stop="objective"), "tol": 1e-6},
    "local-power 4": {"solver": LocalPower(local_steps=4, halve_every=3)},
    "merge tree": {"solver": Merge(fan_in=2, site_components=4)},
    "merge about the mean": {"solver": Merge(own_means=False)},
    "average unweighted": {"solver": Average(weights="unweighted", site_components=5)},
}
METHODS: dict[str, dict[str, Any]] = {
    "power": {"solver": "power"},
    "power common": {"solver": "power", "center": "common", "scale": True, "weights": "rows"},
    "power average": {"solver": "power", "start": "average", "center": "none"},
    "stiefel": {"solver": Stiefel(retraction="qr")},
    "polar": {"solver": Polar(step=0.01), "start": "random"},
}
ROBUST: dict[str, dict[str, Any]] = {
    "auto": {"n_components": 3},
    "auto scaled": {"n_components": 3, "scale": True, "center": "mean"},
    "bound": {"max_components": 6},
    "threshold": {"n_components": 3, "solver": "threshold", "center": "none"},
    "least-squares": {"max_components": 6, "solver": "least-squares"},
    "dcf": {"n_components": 3, "solver": Dcf(local_steps=3), "max_rounds": 30},
}


def over(model: Any, sites: dict[str, Any]) -> Case:
    """Return a function that fits the model over a federation with a journal."""

    def fit(folder: Path) -> dict[str, Any]:
        journal = folder / "journal"
        model.fit(Federation.local(sites, journal=journal))
        ledger = json.loads(json.dumps(model.run_.to_header()["ledger"]))
        return {"arrays": fitted(model), "ledger": ledger, "journal": records(journal)}

    return fit


def streamed(model: Any) -> Case:
    """Return a function that fits a stream of batches, then saves, loads, and continues it."""

    def fit(folder: Path) -> dict[str, Any]:
        rng = np.random.default_rng(6)
        X = rng.standard_normal((300, 25)) * np.geomspace(5, 0.1, 25) + 1e6
        for batch in np.array_split(X[:200], 7):
            model.partial_fit(batch)
        model.save(folder / "stream")
        resumed = type(model).load(folder / "stream")
        resumed.partial_fit(X[200:])
        return {"arrays": fitted(resumed)}

    return fit


def fitted(model: Any) -> dict[str, str]:
    """Checksum every fitted array and number."""
    names = [name for name in dir(model) if name.endswith("_") and not name.startswith("_")]
    values = {name: getattr(model, name) for name in names}
    return {name: checksum(value) for name, value in values.items() if is_numeric(value)}


def is_numeric(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_numeric(item) for item in value.values())
    return isinstance(value, np.ndarray | float | int)


def checksum(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps({str(key): checksum(item) for key, item in value.items()})
    array = np.asarray(value)
    content = str(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


def records(journal: Path) -> list[Any]:
    """Read every round of a journal: its header, and checksums of its arrays."""
    data, found = journal.read_bytes(), []
    while data:
        size = encoded_size(data[:PREFIX_BYTES])
        assert size is not None
        record, data = decode(data[:size], limit=None), data[size:]
        header = {
            k: v for k, v in record.header.items() if k not in ("sizes", "about", "identity", "run")
        }
        found.append([header, {name: checksum(a) for name, a in record.arrays.items()}])
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return where two results of a case differ, apart from names that were changed on purpose."""
    missing = before["arrays"].keys() - after["arrays"].keys()
    wrong = [f"no {name}" for name in sorted(missing)]
    for name, value in before["arrays"].items():
        if name not in missing and after["arrays"][name] != value:
            wrong.append(name)
    if [_crossing(row) for row in before.get("ledger", [])] != [
        _crossing(row) for row in after.get("ledger", [])
    ]:
        wrong.append("ledger")
    if [_record(row) for row in before.get("journal", [])] != [
        _record(row) for row in after.get("journal", [])
    ]:
        wrong.append("journal")
    return wrong


def _case(name: str) -> str:
    """Return the present name of a case; the cases of `FederatedPCA` begin with their solver."""
    solver, _, what = name.partition(" ")
    return f"{RENAMED_SOLVERS.get(solver, solver)} {what}"


def _crossing(row: list[Any]) -> list[Any]:
    """Return one line of a ledger, apart from sizes that depend on the length of a question's name."""
    number, question, direction, how, fields, sites = row
    names = {question, *(name for name, _, _ in fields)}
    is_free = bool(names & {*RENAMED, *RENAMED.values(), *FREE_LENGTHS})
    sizes = [name for name, _ in sites] if is_free else sites
    fields = [
        [name] if name in FREE_LENGTHS else [RENAMED.get(name, name), shape, size]
        for name, shape, size in fields
    ]
    return [number, RENAMED.get(question, question), direction, how, fields, sizes]


def _record(row: list[Any]) -> list[Any]:
    header, arrays = row
    question = header.get("question")
    return [{**header, "question": RENAMED.get(question, question)}, arrays]


def main() -> None:
    """Fit all cases, and write or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, help="the file to write results to")
    what.add_argument("--compare", type=Path, help="a file of earlier results")
    options = parser.parse_args()
    found = {}
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, case in cases():
            with tempfile.TemporaryDirectory() as folder:
                found[name] = case(Path(folder))
    if options.write:
        options.write.write_text(json.dumps(found))
        print(f"wrote {len(found)} cases to {options.write}")
        return
    earlier = {_case(name): case for name, case in json.loads(options.compare.read_text()).items()}
    wrong = {name: differences(earlier[name], found[name]) for name in earlier if name in found}
    for name, parts in wrong.items():
        print(f"{name:42s} {'same bits' if not parts else 'DIFFERS: ' + ', '.join(parts)}")
    lost = sorted(earlier.keys() - found.keys())
    if lost:
        print(f"no longer there: {', '.join(lost)}")
    if lost or any(wrong.values()):
        raise SystemExit(1)
    print(f"{len(wrong)} cases: every array, ledger and journal is the same")


if __name__ == "__main__":
    main()
