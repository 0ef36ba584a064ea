"""Secure sums send what plain ones do, but for 128-bit numbers, and for a few messages about sizes."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pytest
from sklearn.base import clone

from fedpca import FederatedPCA, Federation, PersonalizedPCA, RobustPCA
from fedpca.coordinator.ledger import ENVELOPE
from fedpca.privacy.bounds import N_WORDS
from fedpca.privacy.rings import WIDE
from fedpca.privacy.secure_sum import SIZES, ZERO
from support import gapped_rows, low_rank_rows

D, K, SITES = 60, 3, ("a", "b", "c")
MAX_RATIO = 1.01  # of the bytes of answers under masks, apart from what the test adds up by name
MAX_ENTRY_BYTES = 64  # of a field in a message's header, with what it may add to the padding
MAX_ENVELOPE_BYTES = 256  # of a message about sizes
FEDERATED = {
    "covariance": {"count_and_sum": 1, "covariance_triangle": 1},
    "lanczos": {"count_and_sum": 1, "standardize": 1},
    "subspace-iteration": {"count_and_sum": 1, "standardize": 1},
    "local-power": {"count_and_sum": 1, "standardize": 1},
    "faps": {"count_and_sum": 1, "standardize": 1},
}
BEGIN = {"begin_personalized": 1}
ROBUST = {"count_present": 1, "squares_present": 1, "clipped_product": 1, "finish_robust": 1}
# each solver, and how often a fit asks for sizes alone
ASKED = {
    **{name: (FederatedPCA(K, solver=name), sizes) for name, sizes in FEDERATED.items()},
    "lanczos, scaled": (
        FederatedPCA(K, solver="lanczos", scale=True),
        {"count_and_sum": 1, "squares": 1, "standardize": 1},
    ),
    "rank by signs": (
        FederatedPCA("auto", solver="covariance"),
        {"count_and_sum": 1, "covariance_triangle": 1, "flipped_triangles": 1},
    ),
    "personalized power": (PersonalizedPCA(2, 1), {**BEGIN, "basis_product": 1}),
    "personalized stiefel": (
        PersonalizedPCA(2, 1, solver="stiefel"),
        {**BEGIN, "basis_product": 1, "prepare_steps": 1, "stiefel_step": 1},
    ),
    "personalized polar": (
        PersonalizedPCA(2, 1, solver="polar"),
        {**BEGIN, "basis_product": 1, "prepare_steps": 1, "polar_step": 1},
    ),
    "robust": (RobustPCA(K), {**ROBUST, "hard_round": 1, "soft_round": 1}),
    "robust threshold": (RobustPCA(K, solver="threshold"), {**ROBUST, "hard_round": 1}),
    "robust least-squares": (
        RobustPCA(K, solver="least-squares"),
        {**ROBUST, "soft_round": 1},
    ),
    "robust dcf": (RobustPCA(K, solver="dcf"), {**ROBUST, "gradient_round": 1}),
    "robust rank": (
        RobustPCA(max_components=K + 1),
        {**ROBUST, "soft_round": 1, "hard_round": 1, "residual_product": 1},
    ),
}


def rows_for(estimator):
    rng = np.random.default_rng(0)
    if isinstance(estimator, RobustPCA):
        X = low_rank_rows(300, D, K, share=0.03, size=20.0, noise=0.1)[0]
        X *= np.linspace(1, 2, D)
    else:
        X = gapped_rows(rng, 300, D, K, offset=1.0)
    parts = dict(zip(SITES, np.array_split(X, len(SITES)), strict=True))
    for i, part in enumerate(parts.values()):
        if isinstance(estimator, PersonalizedPCA):
            part[:, i] *= 20.0  # what is local differs
    return parts


def ledger_of(estimator, secure):
    """Return the record of a fit, and what its sites sent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        federation = Federation.local(rows_for(estimator), secure=secure)
        model = clone(estimator).set_params(random_state=0, max_rounds=40).fit(federation)
    return model.run_, [entry for entry in model.run_.ledger if entry.direction == "up"]


def messages_of(entries):
    """Return how many messages each question needed beside one in each round: for sizes, and again."""
    own = [entry for entry in entries if entry.site == SITES[0]]
    sizes, again = Counter(), Counter()
    for number, question in {(entry.round, entry.question) for entry in own}:
        names = [entry.field for entry in own if entry.round == number]
        n_answers = names.count(min(set(names) - {*SIZES.values(), ZERO, ENVELOPE}))
        sizes[question] += names.count(ENVELOPE) - n_answers
        again[question] += n_answers - 1
    return dict(+sizes), dict(+again)


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_answers_under_masks_take_no_more_bytes_than_plain_ones(name):
    estimator, due = ASKED[name]
    _, plain = ledger_of(estimator, secure=False)
    run, masked = ledger_of(estimator, secure=True)
    asked = {entry.question for entry in masked}
    n_plain = sum(entry.bytes for entry in plain if entry.question in asked)
    sizes, again = messages_of(masked)
    assert sizes == due
    assert not again  # no bound from an earlier round was too small
    rings = {entry["round"]: entry.get("rings", {}) for entry in run.history}
    once_more = sum(e.bytes // 2 for e in masked if rings[e.round].get(e.field, [0])[0] == WIDE)
    assert once_more < 0.1 * n_plain  # of numbers in 128 bits
    beside = [e.bytes for e in masked if e.field in (*SIZES.values(), ZERO)]
    assert set(beside) <= {8 * N_WORDS, 8}
    of_sizes = sum(beside) + MAX_ENTRY_BYTES * len(beside)
    of_sizes += MAX_ENVELOPE_BYTES * len(SITES) * sum(sizes.values())
    assert sum(entry.bytes for entry in masked) <= MAX_RATIO * n_plain + once_more + of_sizes
