"""Estimate a site's ``C = A'A``, ``(d, d)``, from the messages in its runs.

An attack takes the messages from a run and from refits with different starts. It returns an estimate of
C, or None if no message helps it. Let Z be a matrix sent to a site, and let Y be the answer. The
attacks use

    plain products      Y = C Z                               subspace iteration, Lanczos
    masked products     (I - Z Z') Y ~ (I - Z Z') C Z         FAPS; better near its end
    within              Z'C Z                                 the last round of FAPS
    powers              Y = U S W',  C ~ U S U'               several local power steps
    flips               the diagonal of C                     the choice of the rank by sign flips

The attacker learns the trace of C before any of these answers. Estimates scale with the answers: a
fraction of a summed answer yields the same fraction of the estimate.

Sources: Wang, Liu, and Zhang, "Seeking consensus on subspaces in federated principal component
analysis" (2023), Propositions 2 and 5; for `low_rank`, Williams and Seeger, "Using the Nystroem method
to speed up kernel machines" (2001). The other attacks are our own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsqr

from fedpca.arrays import Array, Arrays
from fedpca.audit.transcript import View
from fedpca.linalg.dense import outside, unpack_triangle
from fedpca.solvers.exact.tsqr import unpack_factor
from fedpca.summary.summary import Summary

Runs = Sequence[View]  # the original fit, followed by its refits
CovarianceAttack = Callable[[Runs], Array | None]
Pairs = list[tuple[Array, Array]]  # a matrix Z and its answer Y
MIN_RELATIVE_SIZE = 1e-13  # smaller directions, relative to the largest, are rounding noise

PRODUCTS, POWERS, MASKED = "covariance_product", "local_power_steps", "consensus_step"
SUMMARY_QUESTIONS = ("summarize_rows", "summarize_about")
DESCRIBED = "describe_site"  # its answer is a summary about the site's own mean, in a model's frame
FACTOR_QUESTION = "triangular_factor"
# the solvers' own questions
TELLING_QUESTIONS = (
    PRODUCTS,
    POWERS,
    MASKED,
    "covariance_triangle",
    FACTOR_QUESTION,
    *SUMMARY_QUESTIONS,
    DESCRIBED,
)
SHARE_QUESTIONS = ("explained_energy", "explained_in_summary")
TRIANGLES, FLIPPED = "flipped_triangles", "flipped_product"
SQUARES = "column_squares"
FLIP_QUESTIONS = (SQUARES, "draw_signs", TRIANGLES, FLIPPED)
MOMENTS = ("column_names", "use_variants", "count_and_sum", "squares", "standardize")
BESIDE = (*MOMENTS, *FLIP_QUESTIONS, "energy_within", *SHARE_QUESTIONS)


def up_to_round(view: View, n_rounds: int) -> View:
    """Return the view after ``n_rounds`` rounds of the solver; the last includes the end of the run."""
    at = [i for i, heard in enumerate(view.messages) if heard.question in TELLING_QUESTIONS]
    return view if n_rounds >= len(at) else view._replace(messages=view.messages[: at[n_rounds]])


def pairs_of(view: View, question: str) -> Pairs:
    """Return Z and Y for every round that asked this question."""
    return [(h.asked["Z"], h.answer["Y"]) for h in view.messages if h.question == question]


def least_squares(runs: Runs) -> Array | None:
    """Return the minimum-norm C with C Z = Y for all plain products in the run (Proposition 2)."""
    return _least_norm(pairs_of(runs[0], PRODUCTS))


def low_rank(runs: Runs) -> Array | None:
    """Return the lowest-rank positive semidefinite C that agrees with all plain products."""
    return _lowest_rank(pairs_of(runs[0], PRODUCTS))


def constant_mask(runs: Runs) -> Array | None:
    """Apply `least_squares` to the masked products, as if the mask never changed."""
    return _least_norm(pairs_of(runs[0], MASKED))


def cross_block(runs: Runs) -> Array | None:
    """Treat the latest masked product as plain outside Z, and use the last round for C within Z.

    The remainder of the trace is spread evenly over the other directions.
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
    """Return the leading part of C, which the site's local power steps approximate."""
    sent = pairs_of(runs[0], POWERS)
    if not sent:
        return None
    U, s, _ = np.linalg.svd(sent[-1][1], full_matrices=False)
    return _with_rest(U, np.diag(s), trace_told(runs[0]))


def refits(runs: Runs) -> Array | None:
    """Combine the plain products of the run and its refits.

    If there are none, combine the first masked product of each. A mask builds up over the rounds,
    so the first mask hides the least.
    """
    if len(runs) < 2:
        return None
    plain = [pair for view in runs for pair in pairs_of(view, PRODUCTS)]
    if plain:
        return _lowest_rank(plain)
    masked = [pair for view in runs for pair in pairs_of(view, MASKED)[:1]]
    return _from_cross_blocks(masked, trace_told(runs[0])) if masked else None


def as_sent(runs: Runs) -> Array | None:
    """Return the C that a message contains directly, as a covariance, a factor, or a summary."""
    for heard in runs[0].messages:
        if heard.question == "covariance_triangle":
            return unpack_triangle(heard.answer["triangle"])
        if heard.question == FACTOR_QUESTION:
            d = len(heard.asked["mean"])
            R = unpack_factor(heard.answer["entries"], int(heard.answer["rank"]), d)
            return np.asarray(R.T @ R)
        if heard.question in SUMMARY_QUESTIONS:
            is_own = heard.question == "summarize_rows"
            return _of_summary(heard.answer, runs[0].model.mean if is_own else None)
        if heard.question == DESCRIBED:  # the summary's mean is relative to the common mean
            return _of_summary(heard.answer, np.zeros(len(heard.answer["mean"])))
    return None


def flips(runs: Runs) -> Array | None:
    """Return the diagonal of C, which the rank rule asks for; random signs hide the other entries."""
    asked = [heard for heard in runs[0].messages if heard.question == SQUARES]
    return np.diag(asked[0].answer["squares"]) if asked else None


def shares(runs: Runs) -> Array | None:
    """Scale the published model to the site's variance, within and outside the components."""
    model, variances = runs[0].model, _site_variances(runs[0])
    if variances is None or not model.eigenvalues.any():
        return None
    values = model.eigenvalues * (variances[0] / model.eigenvalues.sum())
    return _with_rest(model.V, np.diag(values), variances[1])


def rescaled(runs: Runs) -> Array | None:
    """Scale an estimate from the sums, made by a different attack, to the site's variance."""
    variances = _site_variances(runs[0])
    if variances is None:
        return None
    for attack in (as_sent, low_rank, cross_block, leading_part):
        estimate = attack(runs)
        if estimate is not None and np.trace(estimate) > 0:
            return np.asarray(estimate * (variances[1] / np.trace(estimate)))
    return None


def published(runs: Runs) -> Array:
    """Return the model's covariance times the site's share of the rows; anyone can compute it."""
    model, share = runs[0].model, runs[0].share
    noise = model.noise * outside(model.V, np.eye(len(model.V)))
    return np.asarray(share * (model.V * model.eigenvalues @ model.V.T + noise))


COVARIANCE_ATTACKS: dict[str, CovarianceAttack] = {
    "least squares": least_squares,
    "low rank": low_rank,
    "constant mask": constant_mask,
    "cross block": cross_block,
    "leading part": leading_part,
    "refits": refits,
    "as sent": as_sent,
    "flips": flips,
    "shares": shares,
    "rescaled": rescaled,
    "published": published,
}


def _along(pairs: Pairs) -> tuple[Array, Array]:
    """Return an orthonormal basis U for the span of all Z, up to rounding, and C U."""
    Z, Y = (np.hstack(blocks) for blocks in zip(*pairs, strict=True))
    U, s, Vt = np.linalg.svd(Z, full_matrices=False)
    r = int(np.sum(s > MIN_RELATIVE_SIZE * s[0]))
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
    kept = values > MIN_RELATIVE_SIZE * max(values[-1], np.finfo(float).tiny)
    root = CU @ (W[:, kept] / np.sqrt(values[kept]))
    return np.asarray(root @ root.T)


def _from_cross_blocks(pairs: Pairs, trace: float) -> Array:
    """Return the C closest to a multiple of I among symmetric ones with the pairs' cross blocks.

    The trace determines the multiple, which the cross blocks leave open.
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
    solution = lsqr(operator, outside_each(Y).ravel(), atol=1e-12, btol=1e-12, iter_lim=4 * d)[0]
    C = solution.reshape(d, d)
    return np.asarray(C + (trace - np.trace(C)) / d * np.eye(d))


def _with_rest(U: Array, within: Array, trace: float) -> Array:
    """Return ``U within U'`` plus the remainder of the trace, spread evenly outside U."""
    d, k = U.shape
    rest = max(trace - float(np.trace(within)), 0.0) / max(d - k, 1)
    return np.asarray(U @ within @ U.T + rest * outside(U, np.eye(d)))


def _of_summary(answer: Arrays, mean: Array | None) -> Array:
    """Return the scatter that a summary represents, shifted to ``mean`` unless it is None."""
    summary = Summary.from_arrays(answer, n_components=1, room=1)
    rows = summary.known.rows()
    scatter = rows.T @ rows
    scatter += np.diag(np.maximum(summary.squares - scatter.diagonal(), 0.0))
    away = 0.0 if mean is None else summary.mean - mean
    return np.asarray(scatter + summary.n * np.multiply.outer(away, away))


def _site_variances(view: View) -> tuple[float, float] | None:
    """Return the site's variance along the components and in total, if a message contains them."""
    for heard in view.messages:
        if heard.question in SHARE_QUESTIONS:
            return float(heard.answer["explained"]), float(heard.answer["total"])
    return None


def trace_told(view: View) -> float:
    """Return the trace of C, which sites send before the solver's rounds, or 0 if they send none."""
    traces = (float(h.answer["energy"]) for h in view.messages if h.question == "standardize")
    return next(traces, 0.0)
