"""The ledger adds up."""

from __future__ import annotations

import numpy as np

from fedpca.coordinator.ledger import Ledger, fields_of

RNG = np.random.default_rng(0)


def test_totals_of_a_ledger_add_up_to_its_bytes():
    ledger = Ledger()
    ledger.record(1, "q", "sent", fields_of({"x": np.zeros(4)}), {"a": 100, "b": 100})
    ledger.record(1, "q", "summed", fields_of({"y": np.zeros((2, 3))}), {"a": 120, "b": 130})
    ledger.record(2, "q", "seen", fields_of({"y": np.zeros((2, 3))}), {"a": 120})
    assert sum(total.bytes for total in ledger.totals()) == 570
    assert (ledger.bytes_down, ledger.bytes_up) == (200, 370)
    entries = list(ledger)
    assert sum(entry.bytes for entry in entries) == 570
    assert entries[0]._asdict() == {
        "round": 1,
        "site": "a",
        "direction": "down",
        "question": "q",
        "field": "x",
        "shape": (4,),
        "bytes": 32,
        "how": "sent",
    }
