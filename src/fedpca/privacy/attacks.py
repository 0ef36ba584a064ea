"""Attacks: what can be worked out of a site's ``C = A'A``, ``(d, d)``, from what was heard.

An attack takes the messages of one run and of refits from other starts, each as a list of `Heard`, and
gives its estimate of C, or None where it has nothing to work with. With Z what was sent and Y what
came back, messages say

    plain products      Y = C Z                               subspace iteration, Lanczos
    masked products     (I - Z Z') Y ~ (I - Z Z') C Z         FAPS, the nearer its end the better
    within              T = Z'C Z                             the last round of FAPS

and the trace of C is heard before any of these. Attacks are linear in the answers, or at least scale
with them, so that a share of a summed answer gives that share of the estimate.

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
from fedpca.privacy.transcript import Heard
from fedpca.question import Arrays
from fedpca.summary_file import summary_of

View = Sequence[Heard]  # of one run
Pairs = list[tuple[Array, Array]]  # Z and Y
INDEPENDENT = 1e-12  # part of the largest singular value below which rounding hides a direction

SUMMARIES = ("summarize_rows", "summarize_about")
ROUNDS = (
    "covariance_product",
    "local_power_steps",
    "consensus_step",
    "covariance_triangle",
    *SUMMARIES,
)


def after(view: View, n_rounds: int) -> View:
    """The view as of the moment after so many of the solver's rounds; the end is part of the last."""
    at = [i for i, heard in enumerate(view) if heard.question in ROUNDS]
    return view if n_rounds >= len(at) else [*view[: at[n_rounds]], view[-1]]


def plain_products(view: View) -> Pairs:
    """Z and Y = C Z, where one local step was taken."""
    return [
        (heard.asked["Z"], heard.answer["Y"])
        for heard in view
        if heard.question in ("covariance_product", "local_power_steps")
        and heard.asked.get("steps", 1) == 1
    ]


def masked_products(view: View) -> Pairs:
    """Z and Y = Q Z, as FAPS sends them; and what follows several local power steps."""
    return [
        (heard.asked["Z"], heard.answer["Y"])
        for heard in view
        if heard.question == "consensus_step" or int(heard.asked.get("steps", 1)) > 1
    ]


def least_squares(runs: Sequence[View]) -> Array | None:
    """The smallest C with C Z = Y for all plain products of the run: Proposition 2."""
    return _smallest(plain_products(runs[0]))


def low_rank(runs: Sequence[View]) -> Array | None:
    """The C of lowest rank, with no negative eigenvalue, that agrees with all plain products."""
    return _lowest_rank(plain_products(runs[0]))


def constant_mask(runs: Sequence[View]) -> Array | None:
    """The same as `least_squares` for masked products, as if the mask stayed what it is."""
    return _smallest(masked_products(runs[0]))


def cross_block(runs: Sequence[View]) -> Array | None:
    """The latest masked product taken for a plain one outside Z; within Z, what the end tells.

    The rest of the trace is spread evenly over what nothing is known of.
    """
    masked = masked_products(runs[0])
    if not masked:
        return None
    Z, Y = masked[-1]
    d, k = Z.shape
    trace = _trace(runs[0])
    T = next(
        (h.answer["T"] for h in runs[0] if h.question == "energy_within"), trace / d * np.eye(k)
    )
    rest = max(trace - float(np.trace(T)), 0.0) / max(d - k, 1)
    cross = outside(Z, Y) @ Z.T
    return np.asarray(cross + cross.T + Z @ T @ Z.T + rest * outside(Z, np.eye(d)))


def refits(runs: Sequence[View]) -> Array | None:
    """All plain products of the run and of its refits from other starts; else the first masked ones.

    A mask is new in every round, and it takes rounds to make it: the first one hides least.
    """
    if len(runs) < 2:
        return None
    plain = [pair for view in runs for pair in plain_products(view)]
    if plain:
        return _lowest_rank(plain)
    masked = [pair for view in runs for pair in masked_products(view)[:1]]
    return _from_cross_blocks(masked, _trace(runs[0])) if masked else None


def reading(runs: Sequence[View]) -> Array | None:
    """What a message says outright: a covariance, or a summary."""
    for heard in runs[0]:
        if heard.question == "covariance_triangle":
            return unpack_triangle(heard.answer["triangle"])
        if heard.question in SUMMARIES:
            is_own = heard.question == "summarize_rows"
            return _of_summary(heard.answer, runs[0][-1].asked["mean"] if is_own else None)
    return None


def published(runs: Sequence[View]) -> Array | None:
    """The site's share of what the model says of all rows; everybody can do this."""
    model, share = runs[0][-1].asked, float(runs[0][-1].answer["share"])
    V = model["V"]
    noise = model["noise"] * outside(V, np.eye(len(V)))
    return np.asarray(share * (V * model["eigenvalues"] @ V.T + noise))


def shares(runs: Sequence[View]) -> Array | None:
    """What the components carry of the site's variance, and the rest, each spread evenly."""
    for heard in runs[0]:
        if heard.question in ("explained_energy", "explained_in_summary"):
            V = heard.asked["V"]
            d, k = V.shape
            within, total = float(heard.answer["explained"]), float(heard.answer["total"])
            even = (total - within) / max(d - k, 1)
            return np.asarray(within / k * V @ V.T + even * outside(V, np.eye(d)))
    return None


ATTACKS: dict[str, Callable[[Sequence[View]], Array | None]] = {
    "least squares": least_squares,
    "low rank": low_rank,
    "constant mask": constant_mask,
    "cross block": cross_block,
    "refits": refits,
    "reading": reading,
    "shares": shares,
    "published": published,
}


def _along(pairs: Pairs) -> tuple[Array, Array]:
    """An orthonormal basis U of all Z, as far as they can be told apart, and C U."""
    Z, Y = (np.hstack(blocks) for blocks in zip(*pairs, strict=True))
    U, s, Vt = np.linalg.svd(Z, full_matrices=False)
    r = int(np.sum(s > INDEPENDENT * s[0]))
    return U[:, :r], Y @ Vt[:r].T / s[:r]


def _smallest(pairs: Pairs) -> Array | None:
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
    kept = values > 1e-12 * max(values[-1], np.finfo(float).tiny)
    root = CU @ (W[:, kept] / np.sqrt(values[kept]))
    return np.asarray(root @ root.T)


def _from_cross_blocks(pairs: Pairs, trace: float) -> Array:
    """The symmetric C nearest to a multiple of I whose cross blocks are those of the pairs.

    They say nothing of the multiple; the trace does.
    """
    Z, Y = (np.stack(blocks) for blocks in zip(*pairs, strict=True))
    d = Z.shape[1]

    def off(M: Array) -> Array:
        return np.asarray(M - Z @ (Z.transpose(0, 2, 1) @ M))

    def blocks(flat: Array) -> Array:
        C = flat.reshape(d, d)
        return off((C + C.T) / 2 @ Z).ravel()

    def adjoint(flat: Array) -> Array:
        G = np.einsum("nij,nkj->ik", off(flat.reshape(Z.shape)), Z)
        return np.asarray((G + G.T) / 2).ravel()

    operator = LinearOperator((Z.size, d * d), matvec=blocks, rmatvec=adjoint, dtype=np.float64)
    C = lsqr(operator, off(Y).ravel(), atol=1e-12, btol=1e-12, iter_lim=4 * d)[0].reshape(d, d)
    return np.asarray(C + (trace - np.trace(C)) / d * np.eye(d))


def _of_summary(answer: Arrays, mean: Array | None) -> Array:
    """The scatter that a summary stands for, about ``mean`` where it is about the site's own."""
    summary = summary_of(answer, n_components=1, room=1)
    rows = summary.known.rows()
    scatter = rows.T @ rows
    scatter += np.diag(np.maximum(summary.squares - scatter.diagonal(), 0.0))
    away = 0.0 if mean is None else summary.mean - mean
    return np.asarray(scatter + summary.n * np.multiply.outer(away, away))


def _trace(view: View) -> float:
    return next((float(h.answer["energy"]) for h in view if h.question == "settle"), 0.0)
