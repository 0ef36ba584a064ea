"""Simulation: a C is sought from which a site's program would have sent what it sent.

What a site answers in FAPS follows from its C and from what it was asked, by a program that everybody
has. So a coordinator that sees answers can run the program on a C of its own and change that until the
answers agree:

    min over C of  sum over rounds ||Y(C) - Y||^2 / ||Y||^2  +  what else was told of C

a problem of d (d + 1) / 2 unknowns, begun at the estimate of `cross_block` and then around it. It may
end in a local minimum, which the attacker notices. Where it does not, the mask hides nothing.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from scipy.optimize import least_squares

from fedpca.linalg import outside, pack_triangle, unpack_triangle
from fedpca.message import Array
from fedpca.privacy.attacks import MASKED, Runs, cross_block, pairs_of, trace_told
from fedpca.privacy.transcript import Heard
from fedpca.question import find_question

MOST_FEATURES = 40  # the derivatives of the answers by every entry of C are taken one by one
N_ROUNDS = 10  # whose answers are simulated
MOST_STEPS = 30  # from one start
MOST_STARTS, SPREAD = 6, 0.1  # starts, each further away; until answers agree
AGREED = 1e-16


def simulation(runs: Runs) -> Array | None:
    """The C whose simulated answers are nearest to those that were heard, or None without FAPS."""
    view = runs[0]
    start = cross_block(runs)
    if start is None:
        return None
    rounds = [heard for heard in view.messages if heard.question == MASKED][:N_ROUNDS]
    trace, (Z, Y) = trace_told(view), pairs_of(view, MASKED)[-1]
    ends = [h for h in view.messages if h.question == "energy_within"]

    def differences(x: Array) -> Array:
        C = unpack_triangle(x)
        parts = [
            (said - heard.answer["Y"]).ravel() / np.linalg.norm(heard.answer["Y"])
            for said, heard in zip(_answers(C, rounds), rounds, strict=True)
        ]
        parts += [np.array([np.trace(C) - trace]) / trace, outside(Z, C @ Z - Y).ravel() / trace]
        for end in ends:
            within = end.asked["Z"].T @ C @ end.asked["Z"] - end.answer["within"]
            parts.append(within.ravel() / trace)
        return np.concatenate(parts)

    unit = trace / len(start)
    rng = np.random.default_rng(0)
    fits = []
    for attempt in range(MOST_STARTS):
        noise = rng.standard_normal(start.shape) * unit * SPREAD * attempt
        found = least_squares(
            differences,
            pack_triangle(start + (noise + noise.T) / 2),
            x_scale=unit,
            max_nfev=MOST_STEPS,
            ftol=1e-15,
            xtol=1e-15,
            gtol=1e-15,
        )
        fits.append((float(found.cost), found.x))
        if found.cost < AGREED:
            break
    _, x = min(fits, key=lambda fit: fit[0])
    return unpack_triangle(x)


def _answers(C: Array, rounds: list[Heard]) -> list[Array]:
    """What a site with this C would have answered."""
    site = SimpleNamespace(memory={}, framed=SimpleNamespace(gram_times=C.__matmul__))
    step = find_question(MASKED)
    return [np.asarray(step.function(site, **heard.asked)["Y"]) for heard in rounds]
