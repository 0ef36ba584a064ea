"""A memory file that is damaged, of another kind, or not for the site to read is told as such."""

from __future__ import annotations

import numpy as np
import pytest

from disks import as_ordinary_user
from fedpca.errors import FedpcaError, InputError
from fedpca.protocol.message import compose, encode
from fedpca.site.memory import Checkpoint

SAVED = Checkpoint(
    "run", 3, {"Frame.mean": np.arange(3.0)}, compose({"round": 3}, {"n": np.int64(4)})
)


def test_every_bit_of_a_memory_file_counts(tmp_path):
    path = tmp_path / "north.memory"
    SAVED.save(path, "rows")
    good, unnoticed = path.read_bytes(), []
    assert Checkpoint.load(path, "run", "rows").memory["Frame.mean"].tolist() == [0, 1, 2]
    for bit in range(8 * len(good)):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            Checkpoint.load(path, "run", "rows")
        except FedpcaError:
            continue
        unnoticed.append(bit)
    assert not unnoticed


@pytest.mark.parametrize(
    "content",
    [b"", b"junk", encode(compose({"identity": {}}, {})), encode(compose({"run": "run"}, {}))],
    ids=["empty", "junk", "journal", "message"],
)
def test_a_file_of_another_kind_is_no_memory(content, tmp_path):
    path = tmp_path / "north.memory"
    path.write_bytes(content)
    with pytest.raises(
        InputError, match=r"north\.memory, the site's memory, is damaged: .*; start over"
    ):
        Checkpoint.load(path, "run", "rows")


def test_memory_that_may_not_be_read_says_so():
    with as_ordinary_user() as folder:
        path = folder / "north.memory"
        SAVED.save(path, "rows")
        path.chmod(0)
        with pytest.raises(InputError, match=r"cannot be read: Permission denied"):
            Checkpoint.load(path, "run", "rows")
