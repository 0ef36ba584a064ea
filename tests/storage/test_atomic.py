"""Files are written whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca.storage import atomic

RNG = np.random.default_rng(0)


def test_a_file_is_replaced_only_when_it_is_complete(tmp_path):
    target = tmp_path / "f"
    with atomic.writing(target) as path:
        path.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    with pytest.raises(TypeError), atomic.writing(target) as path:
        path.write_text(b"half")
    assert target.read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 1
