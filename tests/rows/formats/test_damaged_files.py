"""Files of rows that are damaged, of another kind, or not for us to read give an error of ours."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from command_line import run
from disks import as_ordinary_user
from fedpca import StreamingPCA
from fedpca.errors import FedpcaError, InputError, SiteFailed
from fedpca.rows.open import open_rows
from support import write_rows

X = np.random.default_rng(0).normal(size=(50, 4))
KINDS = [".npy", ".npz", "compressed.npz", "sparse.npz", ".parquet", ".csv"]
MORE = [".feather", ".h5", ".h5ad"]
DAMAGED = [*KINDS, ".feather", *(pytest.param(kind, marks=pytest.mark.long) for kind in MORE[1:])]


def write(folder, kind):
    if kind == "compressed.npz":
        np.savez_compressed(folder / "rows.npz", X=X)
    elif kind == "sparse.npz":
        sp.save_npz(folder / "rows.npz", sp.csr_array(X))
    else:
        return write_rows(folder, kind, X)
    return folder / "rows.npz"


def damaged(good, rng):
    """The bytes of a file after all kinds of accidents."""
    yield from (good[:size] for size in {*range(0, 200, 7), *range(0, len(good), 97)})
    for size in (1, 10, 1000):
        yield rng.bytes(size)
        yield good[:8] + rng.bytes(size)
    for _ in range(400):
        spoiled = bytearray(good)
        for at in rng.integers(0, len(good), rng.integers(1, 4)):
            spoiled[at] = rng.integers(0, 256)
        yield bytes(spoiled)
    for at in (*range(0, 128), *range(len(good) - 200, len(good))):
        spoiled = bytearray(good)
        spoiled[at] ^= 1 << rng.integers(0, 8)
        yield bytes(spoiled)


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.filterwarnings("ignore")  # numpy tells of some damage by warnings
def test_no_damage_to_a_file_of_rows_gives_an_error_of_another_package(kind, tmp_path):
    path = write(tmp_path, kind)
    told = []
    for content in damaged(path.read_bytes(), np.random.default_rng(1)):
        path.write_bytes(content)
        try:
            rows = open_rows(path)
            for block in rows.blocks():
                block.sum()
        except FedpcaError as error:
            told.append(str(error))
    assert len(told) > 30
    assert all(str(path) in text for text in told)


@pytest.mark.parametrize("kind", [*KINDS[:-1], *MORE])
@pytest.mark.parametrize("size", [0, 9, -60])
def test_a_file_that_was_cut_off_ends_a_command_with_one_line(kind, size, tmp_path):
    path = write(tmp_path, kind)
    path.write_bytes(path.read_bytes()[:size])
    done = run("fit", path, "-o", tmp_path / "m")
    assert done.exit_code == 2
    assert f"{path} is not a readable {path.suffix} file; it may be damaged" in done.output
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", [".npy", ".npz", ".parquet", ".csv"])
def test_a_file_of_another_kind_is_refused_by_name(kind, other, tmp_path):
    path = write(tmp_path, kind)
    if path.suffix == other:
        return
    moved = path.rename(tmp_path / f"other{other}")
    with pytest.raises(InputError, match=f"other{other}"):
        open_rows(moved)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_may_not_be_read_says_so(kind):
    with as_ordinary_user() as folder:
        path = write(folder, kind)
        path.chmod(0)
        with pytest.raises(InputError, match=f"{path} cannot be read: Permission denied; check"):
            open_rows(path)
        path.chmod(0o600)
        closed = folder / "closed"
        closed.mkdir()
        path = path.rename(closed / path.name)
        closed.chmod(0)
        with pytest.raises(InputError, match=f"{path} cannot be read: Permission denied; check"):
            open_rows(path)
        done = run("fit", path, "-o", folder / "m")
        closed.chmod(0o700)
    assert done.exit_code == 2
    assert f"{path} cannot be read: Permission denied; check" in done.output


@pytest.mark.parametrize("kind", [".npy", ".parquet", ".csv", *MORE])
def test_a_file_that_goes_away_while_it_is_used_is_named(kind, tmp_path):
    path = write(tmp_path, kind)
    rows = open_rows(path)
    path.unlink()
    with pytest.raises(SiteFailed, match=f"{path}.* can no longer be read"):
        list(rows.blocks())


def test_a_folder_with_the_name_of_a_file_is_refused(tmp_path):
    (tmp_path / "rows.npy").mkdir()
    with pytest.raises(InputError, match=r"rows\.npy contains no \.npy"):
        StreamingPCA(1).fit(tmp_path / "rows.npy")
