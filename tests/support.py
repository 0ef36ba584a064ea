"""Rows, solvers and files that tests share."""

from __future__ import annotations

import hashlib
import json
import math
import warnings

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import settings
from safetensors import safe_open
from safetensors.numpy import save_file

from fedpca import Site
from fedpca.privacy.discrete_gaussian import discrete_gaussian
from fedpca.privacy.rings import Ring
from fedpca.privacy.secure_sum import SIZES, ZERO
from fedpca.solvers import SOLVERS
from fedpca.solvers.private import at_site
from fedpca.storage.tensor_file import CHECKSUM_KEY, contents_checksum

if pd.__version__.startswith("2."):  # which anndata asks for; frames would change shared arrays
    pd.set_option("mode.copy_on_write", True)

NAMES = ["a", "b", "c", "d"]
DRAWS = 15  # of a test with hypothesis; conftest.py says it, which must not import what is measured


def draws(n):
    """Let hypothesis draw n examples, and in `make test-long` as many times more as elsewhere."""
    return settings(max_examples=n * settings.default.max_examples // DRAWS)


def first_of(values, n=1):
    """Values to be tried, of which those after the first n are left to `make test-long`."""
    return [
        value if i < n else pytest.param(value, marks=pytest.mark.long)
        for i, value in enumerate(values)
    ]


def every_other(rows, columns):
    """All pairs, of which every other is left to `make test-long`; each value is tried with some."""
    return [
        pytest.param(row, column, marks=pytest.mark.long if (i + j) % 2 else ())
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]


def asks_for_size(request):
    """Whether a message of a run with secure sums asks only how large the answer is."""
    mask = request.header.get("mask")
    return isinstance(mask, dict) and set(mask) <= {*SIZES.values(), ZERO}


def ring_for(bits, bound):
    """The finest ring for totals up to this bound."""
    return Ring.for_exponent(bits, math.frexp(bound)[1])


def solver_with(name, **options):
    """A solver of the catalogue with options of its own."""
    return type(SOLVERS[name])(**options)


def pooled(sites):
    """All rows in one float64 array."""
    return np.vstack([s.toarray() if hasattr(s, "toarray") else s for s in sites]).astype(float)


def guarded(rows, policy):
    """Sites with a policy, from the rows of each."""
    return {name: Site(own, name=name, policy=policy) for name, own in rows.items()}


def fitted_quietly(estimator, fed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(fed)


def assert_same_bits(a, b, *more):
    """Two fits have the same components, variances, and ledgers, and the same of what is named."""
    for name in ("components_", "explained_variance_", *more):
        assert np.asarray(getattr(a, name)).tobytes() == np.asarray(getattr(b, name)).tobytes()
    assert list(a.run_.ledger) == list(b.run_.ledger)


def gapped_rows(rng, n, d, k, offset=0.0, scale=1.0):
    """Rows whose spectrum falls gently to a gap below component k."""
    k = min(k, n - 1, d)
    deviations = np.concatenate([np.linspace(4, 2, k), np.linspace(0.7, 0.3, d - k)])
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    rows = rng.standard_normal((n, d)) * deviations @ basis.T
    return rows * scale + offset * scale


def low_rank_rows(n=200, d=None, r=10, share=0.05, size=None, noise=0.0, seed=0):
    """Rows, their low-rank part, and where the outliers are."""
    rng = np.random.default_rng(seed)
    d = d or n
    L = rng.standard_normal((n, r)) @ rng.standard_normal((r, d))
    bad = rng.random((n, d)) < share
    S = np.where(bad, (size or np.sqrt(n * d)) * rng.choice([-1, 1], (n, d)), 0.0)
    return L + S + noise * rng.standard_normal((n, d)), L, bad


def write_rows(folder, kind, values, names=NAMES):
    """Write rows as a file of a kind, such as ".csv", and return its path."""
    path = folder / f"rows{kind}"
    if kind == ".npy":
        np.save(path, values)
    elif kind == ".npz":
        np.savez(path, X=values, y=np.zeros(3))
    elif kind == ".parquet":
        pq.write_table(pa.table(dict(zip(names, values.T, strict=True))), path)
    elif kind in (".feather", ".arrow"):
        pd.DataFrame(values, columns=names).to_feather(path)
    elif kind in (".h5", ".hdf5"):
        with h5py.File(path, "w") as file:
            file["X"] = values
    elif kind == ".h5ad":
        import anndata

        cells = [str(i) for i in range(len(values))]
        anndata.AnnData(values, pd.DataFrame(index=cells), pd.DataFrame(index=names)).write(path)
    elif kind == ".zarr":
        zarr.create_array(str(path), data=values, overwrite=True)
    else:
        separator = "\t" if ".tsv" in kind else ","
        frame = pd.DataFrame(values, columns=names)
        frame.to_csv(path, index=False, float_format="%.17g", sep=separator)
    return path


def contents_of(path):
    """The arrays and the header of a model or summary file."""
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return arrays, json.loads(file.metadata()["fedpca"])


def write_contents(path, arrays, header):
    """Write any arrays and any header to a file, with the checksum that belongs to them."""
    header = {key: value for key, value in header.items() if key != CHECKSUM_KEY}
    header[CHECKSUM_KEY] = contents_checksum(header, arrays)
    save_file(arrays, path, metadata={"fedpca": json.dumps(header, sort_keys=True)})


class Stream:
    """Random bytes that can be repeated, in place of the system's."""

    def __init__(self, seed=0):
        self._hash, self._n = hashlib.shake_256(str(seed).encode()), 0

    def __call__(self, n_bytes):
        self._n += 1
        part = self._hash.copy()
        part.update(self._n.to_bytes(8, "little"))
        return part.digest(n_bytes)


def repeat_noise(monkeypatch):
    """Let the noise of private fits be the same in every run of a test."""
    stream = Stream()
    monkeypatch.setattr(
        at_site,
        "discrete_gaussian",
        lambda variance, size: discrete_gaussian(variance, size, random_bytes=stream),
    )
