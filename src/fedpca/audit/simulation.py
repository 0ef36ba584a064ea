"""Find a C whose simulated FAPS answers agree with the answers that a site sent.

In FAPS, a site's C and the questions determine its answers, and the program that computes them is
public. A coordinator that sees the answers can therefore run the program on a trial C, and change the
trial until the answers agree:

    min over C of  sum over rounds ||Y(C) - Y||^2 / ||Y||^2  +  misfit to what else is known about C

The problem has d (d + 1) / 2 unknowns. The search starts at the `cross_block` estimate, and then at
points near it. If the search ends in a local minimum, the attacker notices that the answers differ.
Otherwise, the mask hides nothing.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from fedpca.arrays import Array
from fedpca.audit.attacks import MASKED, Runs, cross_block, pairs_of, trace_told
from fedpca.audit.transcript import Heard
from fedpca.linalg.dense import outside, pack_triangle, unpack_triangle
from fedpca.protocol.question import find_question
from fedpca.site.memory import recall, remember, remembers

MAX_SIMULATED_FEATURES = 40  # derivatives are computed for one entry of C at a time
MAX_SIMULATED_ROUNDS = 10
MAX_EVALUATIONS = 30  # evaluations from each start
MAX_STARTS = 6
START_NOISE = 0.1  # relative to the mean variance; each start gets this much more than the last
MAX_AGREED_COST = 1e-16  # below this cost, the answers agree and the search stops


def simulated_covariance(runs: Runs) -> Array | None:
    """Return the C whose simulated answers best match the real ones, or None if FAPS did not run."""
    view = runs[0]
    start = cross_block(runs)
    if start is None:
        return None
    rounds = [heard for heard in view.messages if heard.question == MASKED][:MAX_SIMULATED_ROUNDS]
    trace, (Z, Y) = trace_told(view), pairs_of(view, MASKED)[-1]
    ends = [h for h in view.messages if h.question == "energy_within"]

    def differences(x: Array) -> Array:
        C = unpack_triangle(x)
        terms = [
            (simulated - heard.answer["Y"]).ravel() / np.linalg.norm(heard.answer["Y"])
            for simulated, heard in zip(_answers(C, rounds), rounds, strict=True)
        ]
        terms += [np.array([np.trace(C) - trace]) / trace, outside(Z, C @ Z - Y).ravel() / trace]
        for end in ends:
            within = end.asked["Z"].T @ C @ end.asked["Z"] - end.answer["within"]
            terms.append(within.ravel() / trace)
        return np.concatenate(terms)

    unit = trace / len(start)
    rng = np.random.default_rng(0)
    fits = []
    for attempt in range(MAX_STARTS):
        noise = rng.standard_normal(start.shape) * unit * START_NOISE * attempt
        result = least_squares(
            differences,
            pack_triangle(start + (noise + noise.T) / 2),
            x_scale=unit,
            max_nfev=MAX_EVALUATIONS,
            ftol=1e-15,
            xtol=1e-15,
            gtol=1e-15,
        )
        fits.append((float(result.cost), result.x))
        if result.cost < MAX_AGREED_COST:
            break
    _, x = min(fits, key=lambda fit: fit[0])
    return unpack_triangle(x)


def _answers(C: Array, rounds: list[Heard]) -> list[Array]:
    """Return the answers that a site with this C would have sent."""
    site = _SimulatedSite(C)
    step = find_question(MASKED)
    return [np.asarray(step.function(site, **heard.asked)["Y"]) for heard in rounds]


class _SimulatedSite:
    """A stand-in for a site that has C instead of rows, which is enough for a masked product."""

    def __init__(self, C: Array) -> None:
        self.standardized = SimpleNamespace(gram_times=C.__matmul__)
        self._memory: dict[str, Array] = {}

    def remembers(self, kind: type) -> bool:
        return remembers(self._memory, kind)

    def recall(self, kind: type) -> Any:
        return recall(self._memory, kind)

    def remember(self, value: Any) -> None:
        remember(self._memory, value)
