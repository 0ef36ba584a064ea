"""What tests of engines share."""

from __future__ import annotations

import pytest

from fedpca.engines.flower import engine
from processes import HANG_S


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Nobody is given up because the machine is busy."""
    monkeypatch.setattr(engine, "ABSENCE_LIMIT_S", HANG_S)
