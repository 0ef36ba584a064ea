"""Attacks by a coordinator that lies, on the questions of robust PCA.

Everything here uses only what a coordinator has: it composes questions and reads answers. `Wire` is the
real message path of sites in this process; it adds the answers up, so that a coordinator who hears only
totals is a wire with several sites.

- `records_in_windows` chooses frames and thresholds: a window in one column that holds a single row
  leaves its square, which has rank one. It recovers all records of an open site.
- `value_by_histograms` follows one value through `count_values` to its last bit.
- `records_by_moving_windows` keeps to the rules of a site that allows "robust": one frame, thresholds
  that stay, orthonormal U, one question after the other. It moves the center by small steps. What a row
  that crosses the edge of the window changes in the sums is the row.

They belong into the leak lab (`fedpca.audit`) once it attacks actively.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedpca import Policy, Site
from fedpca.errors import PolicyRefused
from fedpca.protocol.message import compose
from fedpca.protocol.plan import RunPlan
from fedpca.protocol.question import find_question
from fedpca.solvers.robust.medians import SHIFTS

NO_NAMES = np.empty(0, np.uint8)
FAR = 1e3  # below all values
PLAN = {
    "n_components": None, "max_components": None, "center": "median", "scale": True, "rows": "all",
    "tol": 1e-9, "max_rounds": 200, "solver": {"name": "threshold"},
}  # fmt: skip


@dataclass
class Wire:
    """A coordinator's line to some sites, of whose answers it sees the total."""

    sites: list[Site]
    asked: int = 0  # questions answered
    refused: list[str] = field(default_factory=list)

    @classmethod
    def to(cls, tables, policy: Policy | None, plan=None) -> Wire:
        """Connect to sites with these rows, and declare a plan if there is one."""
        sites = [Site(rows, name=f"site-{i}", policy=policy) for i, rows in enumerate(tables)]
        wire = cls(sites)
        if plan is not None:
            names = {site.name: "" for site in sites}
            declared = RunPlan("run", "RobustPCA", {**PLAN, **plan}, names)
            wire.send("declare_run", plan=np.frombuffer(declared.to_bytes(), np.uint8))
            wire.send("column_names")
            wire.send("count_present", features=NO_NAMES)
        return wire

    def send(self, name, **arrays):
        """Ask all sites, and return the total of their answers."""
        verb = "sum" if name == "declare_run" else find_question(name).verb
        header = {
            "run": "run.0", "round": self.asked, "question": name, "verb": verb,
            "n_sites": len(self.sites), "memory": 0,
        }  # fmt: skip
        message = compose(header, {key: np.asarray(value) for key, value in arrays.items()})
        replies = [site.answer(message) for site in self.sites]
        errors = [reply.header["text"] for reply in replies if "error" in reply.header]
        if errors:
            self.refused.append(errors[0])
            raise PolicyRefused(errors[0])
        self.asked += 1
        if name == "column_names":
            return {}
        return {key: sum(reply.arrays[key] for reply in replies) for key in replies[0].arrays}


def n_recovered(found, tables, rtol=1e-6):
    """Count the rows that some found record equals in all columns."""
    rows = np.vstack(tables)
    if not len(found):
        return 0
    away = np.abs(np.asarray(found)[:, None] - rows[None]).max(axis=2)
    return int((away.min(axis=0) <= rtol * np.abs(rows).max()).sum())


def records_in_windows(wire: Wire, d: int, low: float, high: float, pivot: int = 0):
    """Recover all records whose value in one column is within a range, by windows that hold one row."""
    wire.send("count_present", features=NO_NAMES)
    scale, other = np.full(d, 1e9), (pivot + 1) % d
    scale[pivot] = 1.0
    found, ranges = [], [(low, high)]
    while ranges:
        left, right = ranges.pop()
        sums = []
        for offset in (FAR, 2 * FAR):  # below all values of the other column
            mean = np.full(d, -FAR)
            mean[[pivot, other]] = (left + right) / 2, -offset
            wire.send(
                "begin_robust", mean=mean, scale=scale, varies=np.ones(d, np.uint8), reference=1.0
            )
            answer = wire.send("clipped_product", U=np.eye(d), threshold=(right - left) / 2)
            sums.append(answer["Y"][pivot] * scale)
        squares = sums[0][pivot]
        total = (sums[1][other] - sums[0][other]) / FAR  # of the pivot within the window
        if not squares:
            continue
        if abs(squares - total**2) <= 1e-9 * squares:
            record = sums[0] / total
            found.append(record + np.where(np.arange(d) == pivot, (left + right) / 2, -FAR))
        elif right - left > 1e-7 * (high - low):
            middle = (left + right) / 2
            ranges += [(left, middle), (middle, right)]
    return np.array(found)


def value_by_histograms(wire: Wire, column: int, d: int, prefer=np.argmin):
    """Follow the bin with the fewest values to a single value of a column."""
    if not wire.asked:
        wire.send("count_present", features=NO_NAMES)
    guess, seen = np.zeros(d), 0
    for shift in SHIFTS:
        answer = wire.send(
            "count_values", features=np.arange(d), about=np.zeros(d), guess=guess,
            shift=np.int64(shift), of=np.int64(0),
        )  # fmt: skip
        cells = answer["counts"][column, 1:-1]
        filled = np.flatnonzero(cells)
        if not filled.size:
            break
        part = filled[prefer(cells[filled])]
        seen = int(cells[part])
        guess = guess.copy()
        guess[column] = _in_part(guess[column], int(part), shift)
    return guess[column], seen


def _in_part(guess: float, part: int, shift: int) -> float:
    from fedpca.solvers.robust.medians import _narrowed

    return float(_narrowed(np.array([guess]), np.array([part]), shift)[0])


def records_by_moving_windows(wire: Wire, d: int, r: int, low: float, high: float, pivot: int = 0):
    """Recover records within the rules, by moving the center in one column until a round is refused.

    The scores are r other columns. The window takes in all values below its edge. If a single row lies
    between two places of the edge, then the sums at the two places differ by that row: the count, the
    pivot's sum, and the scores' sums, which show when the center moves without a crossing.
    """
    others = np.delete(np.arange(d), pivot)[:r].tolist()
    scale = np.full(d, 1e6)
    scale[pivot] = 1.0
    wire.send("squares_present", about=np.zeros(d))
    wire.send(
        "begin_robust", mean=np.zeros(d), scale=scale, varies=np.ones(d, np.uint8), reference=1.0
    )
    reach = 2 * (high - low)

    def below(edge):
        """Return the sums over the rows below an edge, or None if a row is at the edge."""
        first, second = ask(edge), ask(edge + (high - low) * 1e-7)
        if first[0] != second[0]:
            return None
        scores = (first[2] - second[2]) / (second[3] - first[3])
        return first[0], first[1], scores * scale[others]

    is_first = [1]

    def ask(edge):
        center = np.zeros(d)
        center[pivot] = edge - reach
        answer = wire.send(
            "hard_round", U=np.eye(d)[:, others], turn=np.eye(r), center=center,
            mean_scores=np.zeros(r), threshold=reach, reach=np.zeros(d),
            is_first=np.int64(is_first.pop() if is_first else 0),
        )  # fmt: skip
        n = answer["good"][pivot]
        pivot_sum = answer["total"][pivot] + n * center[pivot]
        return n, pivot_sum, answer["AV"][pivot], center[pivot]

    found = []
    try:
        ranges = [(low, high, below(low), below(high))]
        while ranges:
            left, right, before, after = ranges.pop()
            if before is None or after is None or right - left < 1e-6 * (high - low):
                continue
            n = after[0] - before[0]
            if n == 1:
                found.append([after[1] - before[1], *(after[2] - before[2])])
            elif n > 1:
                middle = (left + right) / 2
                sums = below(middle)
                ranges += [(left, middle, before, sums), (middle, right, sums, after)]
    except PolicyRefused:
        pass
    return np.array(found).reshape(-1, r + 1), [pivot, *others]
