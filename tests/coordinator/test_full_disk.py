"""A disk that fills up while a run is recorded ends the run with a word, and loses nothing of it."""

from __future__ import annotations

import numpy as np
import pytest

from disks import full_disk
from fedpca import FederatedPCA, Federation, Site
from fedpca.errors import JournalError, QuorumLost
from support import gapped_rows

ROWS = gapped_rows(np.random.default_rng(0), 60, 6, 2)
MODEL = FederatedPCA(2, solver="lanczos", random_state=0)


def sites():
    return [Site(ROWS[:30], name="north"), Site(ROWS[30:], name="south")]


def fit(there, path):
    """Fit with sites that keep their memory in this process, so that only the journal grows."""
    fed = Federation.local(there, journal=path)
    for site in there:
        site.store = None
    return MODEL.fit(fed).components_.tobytes()


def test_a_journal_that_cannot_grow_ends_the_run_and_resumes_it_later(tmp_path):
    whole = fit(sites(), tmp_path / "whole")
    n_bytes = (tmp_path / "whole").stat().st_size
    for room in range(0, n_bytes, n_bytes // 8):
        path, there = tmp_path / f"after-{room}", sites()
        with full_disk(room), pytest.raises(JournalError) as told:
            fit(there, path)
        assert f"cannot write to journal {path}: File too large; free space" in str(told.value)
        assert path.stat().st_size <= room
        if room > n_bytes // 2:  # the run had begun
            assert fit(there, path) == whole


def test_a_site_that_cannot_save_its_memory_fails_by_name(tmp_path):
    rows = {"north": Site(ROWS, name="north", store=tmp_path / "north"), "south": ROWS}
    with full_disk(), pytest.raises(QuorumLost) as lost:
        MODEL.fit(Federation.local(rows))
    assert "site 'north', round 1" in str(lost.value)
