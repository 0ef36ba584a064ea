"""The record of a run: how many rounds, how far after each, what crossed, who was lost."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from fedpca.ledger import Ledger


@dataclass
class Run:
    """What happened in one run.

    ``history`` has an entry for each round: its number, question, number of sites, bytes up and down,
    seconds, and the residual where a solver knew it. ``lost`` says which site was given up in which
    round, and why. ``sites`` are those of which the result is. Solvers
    of one round leave something out: no variance is too small by more than ``missing``, as a share of
    the total, and no angle to the pooled components has a sine above ``angle_bound``. ``advice`` is
    empty, or names a solver that would have taken fewer rounds. A model's file keeps all but the
    seconds.
    """

    seed: int = 0
    sites: tuple[str, ...] = ()
    lost: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    solver: str = ""
    stopped: str = ""
    missing: float = 0.0
    angle_bound: float = 0.0
    advice: str = ""

    def to_header(self) -> dict[str, Any]:
        """The record as plain values, without what differs between two equal runs."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        history = [{**entry, "seconds": None} for entry in self.history]
        return {**values, "history": history, "ledger": self.ledger.to_header()}

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> Run:
        """The record that `to_header` gave."""
        ledger = Ledger.from_header(header["ledger"])
        return cls(**{**header, "sites": tuple(header["sites"]), "ledger": ledger})

    @property
    def rounds(self) -> int:
        """Questions asked, those of the mean and of the final check included."""
        return len(self.history)

    @property
    def solver_rounds(self) -> int:
        """Rounds after which the solver knew its residual."""
        return sum(entry["residual"] is not None for entry in self.history)

    @property
    def bytes_up(self) -> int:
        """Bytes from the sites to the coordinator."""
        return sum(entry["bytes_up"] for entry in self.history)

    @property
    def bytes_down(self) -> int:
        """Bytes from the coordinator to the sites."""
        return sum(entry["bytes_down"] for entry in self.history)
