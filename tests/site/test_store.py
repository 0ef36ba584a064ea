"""All files of a site are in one table, and are read, written, and refused in the same way."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest

from disks import as_ordinary_user, full_disk
from fedpca.errors import FedpcaError, InputError, SiteFailed
from fedpca.site.chained_lines import ChainCheck, add, opened, verified
from fedpca.site.store import BUDGET, FILES, LEDGER, MEMORY, PRIVACY, REQUESTS, ROWS, Kept

OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
WHOLE = {
    MEMORY: {"run": "a.0", "round": 1, "rows": ""},
    ROWS: {},
    BUDGET: {"latest": 1, "run": "a.0", "counted": {"1": [1, 2]}},
    REQUESTS: {
        **dict.fromkeys(("run", "plan", "signer", "decision", "decided", "reason"), ""),
        **dict.fromkeys(("since", "until"), "2026-11-18T12:00:00+00:00"),
        "days": 1,
    },
}
LINES = {
    LEDGER: {"digest_in": "0" * 64, "digest_out": "0" * 64, "salt": "0" * 32},
    PRIVACY: {
        **dict.fromkeys(("run", "session", "question", "purpose"), ""),
        **dict.fromkeys(("epsilon", "delta", "mu2", "total"), 0.5),
        "time": "2026-11-18T12:00:00+00:00",
        "round": 1,
    },
}
ARRAYS = {"n": np.arange(3.0)}


def read(kind, path):
    """Return what a file holds, whichever kind it is."""
    if kind in LINES:
        check = ChainCheck()
        entries = list(verified(path, check, kind))
        return entries if check.problem == "" else check.problem
    return Kept(kind, lambda: path).read(lambda message: (message.header, message.arrays))


def write(kind, path):
    if kind in LINES:
        with opened(path, kind) as file:
            add(file, LINES[kind], kind)
    else:
        Kept(kind, lambda: path).write(WHOLE[kind], ARRAYS)


kinds = pytest.mark.parametrize("kind", [*WHOLE, *LINES], ids=lambda kind: kind.called)


def test_the_page_lists_every_file_and_says_which_to_back_up():
    assert {*WHOLE, *LINES} == {kind for kind in FILES if kind.fields or kind.way_out}
    for kind in FILES:
        name = kind.pattern.replace("*", "NAME-…")
        assert re.search(rf"\| `{re.escape(name)}/?`: ", OPERATIONS), name
    (backups,) = re.findall(r"At a site, back up the key, the policy, and (.*?):", OPERATIONS, re.S)
    assert re.findall(r"`(.*?)`", backups) == [kind.pattern for kind in FILES if kind.in_backup]


@kinds
def test_what_was_written_comes_back_to_its_owner_alone(kind, tmp_path):
    path = kind.path(tmp_path / "folder", "north")
    write(kind, path)
    found = read(kind, path)
    if kind in LINES:
        assert found[0].items() >= LINES[kind].items()
    else:
        assert found[0] == WHOLE[kind]
        assert found[1]["n"].tolist() == [0, 1, 2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@kinds
def test_a_value_of_another_type_makes_a_file_damaged(kind, tmp_path):
    path = tmp_path / "file"
    for name in kind.fields:
        given = {**(LINES | WHOLE)[kind], name: None}
        path.unlink(missing_ok=True)
        if kind in LINES:
            with opened(path, kind) as file:
                add(file, given, kind)
            assert read(kind, path) == "line 1 was changed or inserted; it has no chain"
        else:
            Kept(kind, lambda: path).write(given, {})
            with pytest.raises(InputError, match=f"file, the site's {kind.called}, is damaged: "):
                read(kind, path)


@kinds
def test_a_full_disk_leaves_what_was_there(kind, tmp_path):
    path = tmp_path / "file"
    write(kind, path)
    before = path.read_bytes()
    with full_disk(len(before) // 2), pytest.raises(SiteFailed) as failed:
        write(kind, path)
    assert str(failed.value) == kind.unsaved
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@kinds
def test_a_file_that_may_not_be_read_says_so_without_its_folder(kind):
    with as_ordinary_user() as folder:
        path = folder / "file"
        write(kind, path)
        path.chmod(0)
        with pytest.raises(InputError, match=r"^file, the site's .* cannot be read: Permission"):
            read(kind, path)


@kinds
def test_a_pipe_is_refused_and_not_waited_for(kind, tmp_path):
    path = tmp_path / "file"
    os.mkfifo(path)
    with pytest.raises(FedpcaError, match="is a pipe"):
        read(kind, path)
    if kind in LINES:
        with pytest.raises(SiteFailed):
            write(kind, path)


def test_without_a_folder_the_contents_stay_in_memory():
    kept = Kept(ROWS, lambda: None)
    assert kept.read(lambda message: message) is None
    kept.write({}, ARRAYS)
    assert kept.read(lambda message: message.arrays["n"].tolist()) == [0, 1, 2]
