"""Cohorts on machines of their own, with the policy that a site has by default, agree on variants."""

from __future__ import annotations

import numpy as np
import pytest

from cohorts import simulated, write_fileset
from fedpca import load
from processes import Processes

pytestmark = pytest.mark.process


def test_cohorts_that_joined_find_what_pooled_genotypes_give(tmp_path):
    G, alleles = simulated(240, 40, missing=0)
    G[:3, 7] = np.nan  # of too few samples for the policy
    parts = {"north": G[:120], "south": G[120:]}
    for name, own in parts.items():
        write_fileset(tmp_path / name, own, alleles)
    (tmp_path / "keep").write_text("".join(f"f i{i}\n" for i in range(100)))
    processes = Processes(tmp_path, tuple(parts))
    try:
        for name in parts:
            processes.join(name, f"{name}.bed", "--allow-missing", "--keep", "keep")
        where = ("--federation", processes.address, "--credentials", "tls", "--sites", "2")
        options = (
            "--binomial",
            "--missing",
            "mean",
            "-k",
            "2",
            "--wait",
            "900",
            "--timeout",
            "900",
        )
        processes.run("fit", *where, *options, "--plink", "pc", "-o", "m.fedpca")
    finally:
        processes.stop_all()
    X = np.vstack([own[:100] for own in parts.values()])[:, np.arange(40) != 7]
    A = (X - X.mean(axis=0)) / np.sqrt(X.mean(axis=0) * (1 - X.mean(axis=0) / 2))
    s = np.linalg.svd(A, compute_uv=False)[:2]
    np.testing.assert_allclose(load(tmp_path / "m.fedpca").singular_values_, s, rtol=1e-9)
    assert len((tmp_path / "pc.eigenvec.allele").read_text().splitlines()) == 1 + 2 * 39
