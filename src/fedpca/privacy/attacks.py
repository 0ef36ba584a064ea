"""Attacks: what can be worked out of a site's ``C = A'A``, ``(d, d)``, from what was heard.

An attack takes what is known of one run and of refits from other starts, and gives its estimate of C,
or None where it has nothing to work with. With Z what was sent and Y what came back, messages say

    plain products      Y = C Z                               subspace iteration, Lanczos
    masked products     (I - Z Z') Y ~ (I - Z Z') C Z         FAPS, the nearer its end the better
    within              Z'C Z                                 the last round of FAPS
    powers              Y = U S W',  C ~ U S U'               several local power steps

and the trace of C is heard before any of these. Attacks scale with the answers, so that a share of a
summed answer gives that share of the estimate.

Sources: Wang, Liu and Zhang, "Seeking consensus on subspaces in federated principal component analysis"
(2023), Propositions 2 and 5; for `low_rank` Williams and Seeger, "Using the Nystroem method to speed up
kernel machines" (2001). The others are our own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsqr

from fedpca.linalg import outside, unpack_triangle
from fedpca.message import Array
from fedpca.privacy.transcript import View
from fedpca.question import Arrays
from fedpca.summary_file import summary_of

Runs = Sequence[View]  # of one fit, then of its refits
Attack = Callable[[Runs], Array | None]
Pairs = list[tuple[Array, Array]]  # Z and Y
INDEPENDENT = 1e-13  # part of the largest below which rounding hides a direction

PRODUCTS, POWERS, MASKED = "covariance_product", "local_power_steps", "consensus_step"
SUMMARIES = ("summarize_rows", "summarize_about")
ROUNDS = (PRODUCTS, POWERS, MASKED, "covariance_triangle", *SUMMARIES)  # of solvers
SHARES = ("explained_energy", "explained_in_summary")
BESIDE = ("introduce", "totals", "spread", "settle", "energy_within", *SHARES)


def up_to_round(view: View, n_rounds: int) -> View:
    """What is known after so many of the solver's rounds; the end is part of the last."""
    at = [i for i, heard in enumerate(view.messages) if heard.question in ROUNDS]
    return view if n_rounds >= len(at) else view._replace(messages=view.messages[: at[n_rounds]])


def pairs_of(view: View, question: str) -> Pairs:
    """Z and Y of all rounds in which a question was asked."""
    return [(h.asked["Z"], h.answer["Y"]) for h in view.messages if h.question == question]


def least_squares(runs: Runs) -> Array | None:
    """The smallest C with C Z = Y for all plain products of the run: Proposition 2."""
    return _least_norm(pairs_of(runs[0], PRODUCTS))


def low_rank(runs: Runs) -> Array | None:
    """The C of lowest rank, with no negative eigenvalue, that agrees with all plain products."""
    return _lowest_rank(pairs_of(runs[0], PRODUCTS))


def constant_mask(runs: Runs) -> Array | None:
    """The same as `least_squares` for masked products, as if the mask stayed what it is."""
    return _least_norm(pairs_of(runs[0], MASKED))


def cross_block(runs: Runs) -> Array | None:
    """The latest masked product taken for a plain one outside Z; within Z, what the end tells.

    The rest of the trace is spread evenly over what nothing is known of.
    """
    masked = pairs_of(runs[0], MASKED)
    if not masked:
        return None
    Z, Y = masked[-1]
    trace = trace_told(runs[0])
    within = trace / len(Z) * np.eye(Z.shape[1])
    for heard in runs[0].messages:
        if heard.question == "energy_within" and np.array_equal(heard.asked["Z"], Z):
            within = heard.answer["within"]
    cross = outside(Z, Y) @ Z.T
    return np.asarray(cross + cross.T) + _with_rest(Z, within, trace)


def leading_part(runs: Runs) -> Array | None:
    """The eigenvectors of its own that a site has come near to by local power steps."""
    sent = pairs_of(runs[0], POWERS)
    if not sent:
        return None
    U, s, _ = np.linalg.svd(sent[-1][1], full_matrices=False)
    return _with_rest(U, np.diag(s), trace_told(runs[0]))


def refits(runs: Runs) -> Array | None:
    """All plain products of the run and of its refits from other starts; else the first masked ones.

    A mask is new in every round, and it takes rounds to make it: the first one hides least.
    """
    if len(runs) < 2:
        return None
    plain = [pair for view in runs for pair in pairs_of(view, PRODUCTS)]
    if plain:
        return _lowest_rank(plain)
    masked = [pair for view in runs for pair in pairs_of(view, MASKED)[:1]]
    return _from_cross_blocks(masked, trace_told(runs[0])) if masked else None


def as_sent(runs: Runs) -> Array | None:
    """What a message says outright: a covariance, or a summary."""
    for heard in runs[0].messages:
        if heard.question == "covariance_triangle":
            return unpack_triangle(heard.answer["triangle"])
        if heard.question in SUMMARIES:
            is_own = heard.question == "summarize_rows"
            return _of_summary(heard.answer, runs[0].model.mean if is_own else None)
    return None


def shares(runs: Runs) -> Array | None:
    """The published model, brought to the site's own variance within and outside the components."""
    model, told = runs[0].model, _shares(runs[0])
    if told is None or not model.eigenvalues.any():
        return None
    values = model.eigenvalues * (told[0] / model.eigenvalues.sum())
    return _with_rest(model.V, np.diag(values), told[1])


def rescaled(runs: Runs) -> Array | None:
    """What sums tell of all sites, brought to the site's own variance."""
    told = _shares(runs[0])
    if told is None:
        return None
    for attack in (as_sent, low_rank, cross_block, leading_part):
        whole = attack(runs)
        if whole is not None and np.trace(whole) > 0:
            return np.asarray(whole * (told[1] / np.trace(whole)))
    return None


def published(runs: Runs) -> Array:
    """The site's share of what the model says of all rows; everybody can do this."""
    model, share = runs[0].model, runs[0].share
    noise = model.noise * outside(model.V, np.eye(len(model.V)))
    return np.asarray(share * (model.V * model.eigenvalues @ model.V.T + noise))


ATTACKS: dict[str, Attack] = {
    "least squares": least_squares,
    "low rank": low_rank,
    "constant mask": constant_mask,
    "cross block": cross_block,
    "leading part": leading_part,
    "refits": refits,
    "as sent": as_sent,
    "shares": shares,
    "rescaled": rescaled,
    "published": published,
}


def _along(pairs: Pairs) -> tuple[Array, Array]:
    """An orthonormal basis U of all Z, as far as they can be told apart, and C U."""
    Z, Y = (np.hstack(blocks) for blocks in zip(*pairs, strict=True))
    U, s, Vt = np.linalg.svd(Z, full_matrices=False)
    r = int(np.sum(s > INDEPENDENT * s[0]))
    return U[:, :r], Y @ Vt[:r].T / s[:r]


def _least_norm(pairs: Pairs) -> Array | None:
    if not pairs:
        return None
    U, CU = _along(pairs)
    return np.asarray(CU @ U.T)


def _lowest_rank(pairs: Pairs) -> Array | None:
    if not pairs:
        return None
    U, CU = _along(pairs)
    within = U.T @ CU
    values, W = np.linalg.eigh((within + within.T) / 2)
    kept = values > INDEPENDENT * max(values[-1], np.finfo(float).tiny)
    root = CU @ (W[:, kept] / np.sqrt(values[kept]))
    return np.asarray(root @ root.T)


def _from_cross_blocks(pairs: Pairs, trace: float) -> Array:
    """The symmetric C nearest to a multiple of I whose cross blocks are those of the pairs.

    They say nothing of the multiple; the trace does.
    """
    Z, Y = (np.stack(blocks) for blocks in zip(*pairs, strict=True))
    d = Z.shape[1]

    def outside_each(M: Array) -> Array:
        return np.asarray(M - Z @ (Z.transpose(0, 2, 1) @ M))

    def blocks(flat: Array) -> Array:
        C = flat.reshape(d, d)
        return outside_each((C + C.T) / 2 @ Z).ravel()

    def adjoint(flat: Array) -> Array:
        G = np.einsum("nij,nkj->ik", outside_each(flat.reshape(Z.shape)), Z)
        return np.asarray((G + G.T) / 2).ravel()

    operator = LinearOperator((Z.size, d * d), matvec=blocks, rmatvec=adjoint, dtype=np.float64)
    found = lsqr(operator, outside_each(Y).ravel(), atol=1e-12, btol=1e-12, iter_lim=4 * d)[0]
    C = found.reshape(d, d)
    return np.asarray(C + (trace - np.trace(C)) / d * np.eye(d))


def _with_rest(U: Array, within: Array, trace: float) -> Array:
    """``U within U'``, and what is left of the trace spread evenly outside U."""
    d, k = U.shape
    rest = max(trace - float(np.trace(within)), 0.0) / max(d - k, 1)
    return np.asarray(U @ within @ U.T + rest * outside(U, np.eye(d)))


def _of_summary(answer: Arrays, mean: Array | None) -> Array:
    """The scatter that a summary stands for, about ``mean`` where it is about the site's own."""
    summary = summary_of(answer, n_components=1, room=1)
    rows = summary.known.rows()
    scatter = rows.T @ rows
    scatter += np.diag(np.maximum(summary.squares - scatter.diagonal(), 0.0))
    away = 0.0 if mean is None else summary.mean - mean
    return np.asarray(scatter + summary.n * np.multiply.outer(away, away))


def _shares(view: View) -> tuple[float, float] | None:
    """What the components explain of the site's own variance, and all of it, where it was told."""
    for heard in view.messages:
        if heard.question in SHARES:
            return float(heard.answer["explained"]), float(heard.answer["total"])
    return None


def trace_told(view: View) -> float:
    """The trace of C, which is heard before the solver's rounds; 0 where it was not."""
    told = (float(h.answer["energy"]) for h in view.messages if h.question == "settle")
    return next(told, 0.0)
