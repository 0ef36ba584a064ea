"""Honest runs as one site saw them, which tests replay, change, and compare with."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.protocol.message import compose
from fedpca.protocol.plan import DECLARE
from fedpca.protocol.question import _REGISTRY
from fedpca.solvers import SOLVERS
from fedpca.testing import ScriptedEngine
from support import gapped_rows

NAMES = ("a", "b", "c")
COLUMNS = ["p", "q", "r", "s", "t"]
D = len(COLUMNS)
MAX_ROUNDS = 12
FREE = {"n_products", "seed"}  # hints, from which nothing follows
MOVING = {"mean", "Z", "V", "removed", "flips", "features"}  # that depend on the rows


def family_of(solver):
    """The word that a policy must allow, and whether the coordinator must see answers."""
    known = SOLVERS.get(solver)
    if known is None or (known.guarantee == "exact" and not known.seen):
        return "federated", False
    return solver, True


def strictest(solver):
    """The strictest policy that admits a run of the solver over all sites, with any rank rule."""
    family, gather = family_of(solver)
    # tables here are tiny, and the rule about directions has tests of its own
    rules = {"min_sites": len(NAMES), "min_rows": 5, "min_rows_per_direction": 0}
    return Policy(allow=(family, "auto"), gather=gather, **rules)


def tables(seed=0, wide=False, gaps=False):
    rng = np.random.default_rng(seed)
    X = gapped_rows(rng, 24, 30, 2) if wide else gapped_rows(rng, 90, D, 2, offset=1.0)
    if gaps:  # at each site, in five rows or more that have the same values
        for first in (0, 20, 50):
            X[first : first + 6, :2] = X[first + 6 : first + 11, 2] = np.nan
    names = [f"x{i}" for i in range(30)] if wide else COLUMNS
    parts = np.split(X, [8, 16]) if wide else np.split(X, [20, 50])
    return {n: pd.DataFrame(p, columns=names) for n, p in zip(NAMES, parts, strict=True)}


def sites_of(rows, policy=None, **options):
    return [Site(part, name=name, policy=policy, **options) for name, part in rows.items()]


def fit(solver, sites, k=2, **parameters):
    given = {"random_state": 0, "max_rounds": MAX_ROUNDS, "tol": 1e-6} | parameters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "only .* components are certain")
        warnings.filterwarnings("ignore", "site .* of the rows")
        warnings.filterwarnings("ignore", ".*noise")
        return FederatedPCA(k, solver=solver, **given).fit(sites)


@dataclass(frozen=True)
class Transcript:
    """What one site was asked in a run and answered, beginning with the plan."""

    rows: object
    policy: Policy
    requests: list
    replies: list

    @property
    def names(self):
        return [request.header["question"] for request in self.requests[1:]]

    def site(self):
        """A new site with the same rows."""
        site = Site(self.rows, name=NAMES[0], policy=self.policy)
        site.is_in_process = True  # so that its secrets can be repeated
        return site


@cache
def record(solver, k=2, seed=0, policy=None, **parameters):
    """An honest run with guarded sites, as the first of them saw it."""
    policy = policy or replace(strictest(solver), gather=True)
    rows = tables(seed)
    requests, replies = [], []

    def keep(reply):
        if reply.site == NAMES[0]:
            requests.append(reply.request)
            replies.append(reply.answer)
        return reply.answer

    engine = ScriptedEngine(sites_of(rows, policy), keep, as_bytes=False)
    fit(solver, Federation(engine), k, random_state=seed, **parameters)
    return Transcript(rows[NAMES[0]], policy, requests, replies)


def changed(request, arrays=None, **header):
    return compose({**request.header, **header}, request.arrays if arrays is None else arrays)


def contents(reply):
    return reply.header, {name: array.tobytes() for name, array in reply.arrays.items()}


def some_arrays(rng, question):
    """Arrays of the declared shapes, with numbers that an attacker might choose."""
    lengths = {"d": D, "triangle": D * (D + 1) // 2}
    arrays = {}
    for name, (dtype, dimensions) in question.asks.items():
        shape = []
        for dimension in dimensions:
            if dimension.isdigit():
                shape.append(int(dimension))
            else:
                shape.append(lengths.setdefault(dimension, int(rng.integers(0, 7))))
        arrays[name] = _some_numbers(rng, np.dtype(dtype), shape)
    return arrays


def _some_numbers(rng, dtype, shape):
    if dtype == np.uint8 and len(shape) == 1:
        texts = [b"", json.dumps(list(rng.permutation(COLUMNS))).encode(), b'"auto"', b"0.5", b"["]
        return np.frombuffer(texts[rng.integers(len(texts))], np.uint8)
    if dtype.kind in "iu":
        return np.asarray(rng.choice([0, 1, 2, 3, 5, 8, 20, 2**7], size=shape)).astype(dtype)
    kind = rng.integers(4)
    if kind == 0:
        return np.full(shape, rng.choice([0.0, 1.0, 0.15])).astype(dtype)
    if kind == 1 and len(shape) == 2 and shape[1] <= shape[0]:
        return np.linalg.qr(rng.standard_normal(shape))[0].astype(dtype)
    if kind == 2 and len(shape) == 2:
        return np.eye(*shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _names(array):
    try:
        return json.loads(array.tobytes())
    except ValueError:
        return None


def installed():
    """All questions that fedpca installs."""
    return {name: asked for name, asked in _REGISTRY.items() if asked.package == "fedpca"}


class Oracle:
    """What an honest run of a plan may ask, learned from honest runs and nothing else.

    Questions may follow each other as in the runs, and have their fields. Fields that are the same in
    all runs must be so. Others must be what the mathematics makes of them: blocks are orthonormal and
    no wider than the components, mean and scale never change.
    """

    def __init__(self, transcripts, columns, most):
        self.columns, self.most = columns, most
        self.follows, self.constant = {}, {}
        self.needs = {}  # the question that must have been asked some time before
        for transcript in transcripts:
            before = DECLARE
            for request in transcript.requests[1:]:
                name = request.header["question"]
                self.follows.setdefault(before, set()).add(name)
                before = name
                for field, array in request.arrays.items():
                    self.constant.setdefault((name, field), set()).add(array.tobytes())

    def objection(self, asked, request):
        """Why an honest run would not ask this after the earlier requests, or None."""
        names = [earlier.header["question"] for earlier in asked]
        name, arrays = request.header["question"], request.arrays
        if name not in self.follows.get(names[-1] if names else DECLARE, ()):
            return "out of turn"
        if name in self.needs and self.needs[name] not in names:
            return "too early"
        once = MAX_ROUNDS if name in self.follows.get(name, ()) else 1
        if names.count(name) >= self.most.get(name, once):
            return "too often"
        if request.header["verb"] != installed()[name].verb:
            return "verb"
        if request.header["n_sites"] != len(NAMES):
            return "n_sites"
        for field, array in arrays.items():
            if self._is_wrong(asked, name, field, array, arrays):
                return field
        return None

    def _is_wrong(self, asked, name, field, array, arrays):
        if field in FREE:
            return False
        if field == "features":
            names = _names(array)
            return array.size and not (isinstance(names, list) and sorted(names) == COLUMNS)
        if field == "mean" or (field == "scale" and len(self.constant[name, field]) > 1):
            before = [r.arrays[field] for r in asked if field in r.arrays]
            is_negative = field == "scale" and array.min() <= 0
            return is_negative or any(not np.array_equal(array, other) for other in before)
        if field == "n_flips":
            return array not in (5, 20)
        if field in ("Z", "V", "removed"):
            groups = arrays.get("flips", np.zeros(array.shape[1]))
            blocks = [array[:, groups == group] for group in np.unique(groups)]
            return any(
                not np.allclose(block.T @ block, np.eye(block.shape[1]), atol=1e-7)
                or block.shape[1] > self.columns
                for block in blocks
            )
        if field == "flips":
            return array.size and not 0 <= array.min() <= array.max() < 20
        if field == "steps":
            return array.tobytes() != self._steps(name, asked)
        return array.tobytes() not in self.constant[name, field]

    def _steps(self, name, asked):
        times = sum(earlier.header["question"] == name for earlier in asked)
        steps = [8] * 10 + [4] * 10 + [2] * 10 if name == "local_power_steps" else [5] * 1000
        return np.int64(steps[times]).tobytes()
