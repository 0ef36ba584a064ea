"""Keep a site's ledger as chained lines, and compare it with what a run record proves.

`fedpca.site.chained_lines` describes the chain, and `fedpca.site.answer_log` the entries. The
coordinator keeps the head of each site's ledger in the run record. Comparing that head with the ledger
shows whether the last lines were removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpca.errors import FileError
from fedpca.protocol.proof import commitment
from fedpca.site.chained_lines import ChainCheck, Entry, Kind, add, is_hash, opened, verified


def append(path: Path, contents: Mapping[str, Any]) -> Entry:
    """Append an entry to a ledger, flush the file, and return the entry as it was written.

    The line is written completely or not at all. Another process that appends to the same file at the
    same time waits for its turn.
    """
    with opened(path) as file:
        return add(file, contents, LEDGER)


def check_chain(path: Path) -> ChainCheck:
    """Check the lines of a ledger up to the first that was changed, removed, or inserted."""
    check = ChainCheck()
    try:
        for _ in verified(path, check, LEDGER):
            pass
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None
    return check


def check_proof(path: Path, proof: Mapping[str, str]) -> tuple[int, str]:
    """Return the number of the entry that a proof is for, and what is wrong with the entry.

    ``proof`` is a site's entry in `RunRecord.proofs`. The number is 0 if the ledger has no such entry.
    The text is empty if nothing is wrong.
    """
    for entry in verified(path, ChainCheck(), LEDGER):
        if entry["chain"] != proof["head"]:
            continue
        number: int = entry["entry"]
        if entry["digest_in"] != proof["digest_in"]:
            return number, f"entry {number} records a different question than the run record"
        if commitment(entry["salt"], entry["digest_out"]) != proof["commitment"]:
            return number, f"entry {number} records a different answer than the run record"
        return number, ""
    return 0, (
        f"no verified entry has the head {proof['head']} that is in the run record: the last lines "
        "were removed, the chain was rewritten, or this is the ledger of a different site"
    )


def _has_fields(entry: Entry) -> bool:
    salt = entry.get("salt")
    is_salted = isinstance(salt, str) and re.fullmatch(r"[0-9a-f]{32}", salt) is not None
    return is_salted and all(is_hash(entry.get(name)) for name in ("digest_in", "digest_out"))


LEDGER = Kind(_has_fields, has_older_lines=True)
