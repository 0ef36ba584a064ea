"""Files of arrays: what is written is what is read, and no damage goes unnoticed."""

from __future__ import annotations

import numpy as np
import pytest

from disks import as_ordinary_user, full_disk
from fedpca import FederatedPCA, PersonalizedPCA, StreamingPCA, Summary, load
from fedpca.errors import FileError
from fedpca.storage.tensor_file import read_arrays, write_arrays
from support import contents_of, gapped_rows, write_contents

ARRAYS = {"mean": np.array([1.5, -2.0]), "n": np.array(3.0), "none": np.zeros((0, 2))}
ROWS = gapped_rows(np.random.default_rng(0), 40, 4, 2)


def test_arrays_and_header_come_back_as_they_were(tmp_path):
    header = {"kind": "x", "features": ["é", 'a"b', "\ud800"], "numbers": {10: 0.1, 9: 1e300}}
    write_arrays(tmp_path / "f", ARRAYS, header)
    arrays, read = read_arrays(tmp_path / "f", "model")
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: array.tolist() for name, array in ARRAYS.items()
    }
    assert read["features"] == header["features"]
    assert read["numbers"] == {"10": 0.1, "9": 1e300}


def test_the_same_values_give_the_same_bytes(tmp_path):
    for name in "ab":
        write_arrays(tmp_path / name, dict(reversed(ARRAYS.items())), {"kind": "x"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_every_bit_counts(tmp_path):
    path = tmp_path / "f"
    write_arrays(path, ARRAYS, {"kind": "x", "features": ["é", "b"], "n": 1e22})
    good = path.read_bytes()
    unnoticed = []
    for bit in range(8 * len(good)):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            read_arrays(path, "model")
        except FileError:
            continue
        unnoticed.append(bit)
    assert not unnoticed


@pytest.mark.filterwarnings("ignore:misalignment")
@pytest.mark.parametrize(
    "write",
    [
        lambda path: FederatedPCA(2).fit([ROWS]).save(path),
        lambda path: StreamingPCA(2).fit(ROWS).save(path),
        lambda path: PersonalizedPCA(1, 1).fit([ROWS[:20], ROWS[20:]]).save(path),
        lambda path: Summary.of(ROWS, 2).save(path),
    ],
    ids=["model", "stream", "personalized", "summary"],
)
def test_a_bit_that_flips_in_a_number_is_noticed(write, tmp_path):
    path = tmp_path / "f"
    write(path)
    damaged = bytearray(path.read_bytes())
    damaged[-8] ^= 1  # the last bit of the last number
    path.write_bytes(damaged)
    with pytest.raises(FileError, match="f is damaged: its checksum does not match; copy the file"):
        Summary.load(path)
    with pytest.raises(FileError, match="f is damaged: its checksum does not match; copy the file"):
        load(path)


def test_a_file_without_a_checksum_is_refused(tmp_path):
    path = tmp_path / "f"
    write_arrays(path, ARRAYS, {"kind": "x"})
    arrays, header = contents_of(path)
    write_contents(path, arrays, {**header, "format": 2})
    with pytest.raises(FileError, match="has format 2; this version of fedpca reads format 3"):
        read_arrays(path, "model")


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, -1])
def test_a_file_that_was_cut_off_is_refused(size, tmp_path):
    path = tmp_path / "f"
    write_arrays(path, ARRAYS, {"kind": "x"})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(FileError, match="f is not a readable fedpca model file"):
        read_arrays(path, "model")


def test_random_bytes_and_files_of_other_kinds_are_refused(tmp_path):
    path = tmp_path / "f"
    rng = np.random.default_rng(0)
    contents = [rng.bytes(int(size)) for size in rng.integers(1, 300, 50)]
    contents += [b'\x10\0\0\0\0\0\0\0{"__metadata__":1', b"PK\x03\x04" + bytes(60)]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(FileError, match="f is not a readable fedpca model file"):
            read_arrays(path, "model")
    with pytest.raises(FileError, match="is a folder; provide a file name"):
        read_arrays(tmp_path, "model")


def test_a_file_that_may_not_be_read_says_so():
    with as_ordinary_user() as folder:
        write_arrays(folder / "f", ARRAYS, {"kind": "x"})
        (folder / "f").chmod(0)
        with pytest.raises(FileError, match="f cannot be read: Permission denied"):
            read_arrays(folder / "f", "model")


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "f"
    write_arrays(path, ARRAYS, {"kind": "old"})
    before = path.read_bytes()
    with full_disk(100), pytest.raises(FileError, match=r"f cannot be written: .*File too large"):
        write_arrays(path, ARRAYS, {"kind": "new"})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
