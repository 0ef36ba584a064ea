"""What a coordinator that keeps to all rules may ask, drawn at random, and what rows add to answers.

A `Hospital` is a site with a policy and rows in a file that can change. A `Walk` declares a plan and
asks what the plan's script lets it ask, in any order that the script has, with numbers that are
anywhere within the declared bounds. Nothing here knows a solver: what may be asked is read from the
declarations.

`added_by` says what each row adds to an answer that is a sum over rows. `singled_out` looks, by linear
algebra, for a combination of answers to which only a few rows add anything.
"""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, settings

from cohorts import write_fileset
from fedpca import Site
from fedpca.audit.liar import Liar, Refused
from fedpca.linalg.dense import unpack_triangle
from fedpca.privacy.gaussian import Privacy, epsilon_of
from fedpca.protocol.parameters import split_words
from fedpca.protocol.plan import PRIVATE, RunPlan
from fedpca.protocol.question import find_question
from fedpca.protocol.script import find_script
from fedpca.rows.bounded import RADIUS
from fedpca.rows.gaps import DROP, MEAN, MISSING
from fedpca.site.gate import refusal_of
from fedpca.site.policy import JOINING
from fedpca.solvers.common_features import names_from_bytes, names_to_bytes
from fedpca.solvers.private.at_site import AROUND_TIMES, COUNT_UNIT
from support import draws

WORDS = ("federated", "auto")  # what the policies of these tests allow
ROSTER = ("north", "south", "east")
MOST_COUNT = 6  # no array has more columns, and no number of steps is larger, unless it must be
QUARTER_TURN = np.full((4, 4), 0.5) - np.eye(4)  # orthogonal, and keeps a column of ones
SETTLED = 1e-9  # singular values below this share of the largest are rounding


def search(n):
    """Let hypothesis draw examples; they are so small that it need not look for smaller ones."""
    return settings(draws(n), phases=[phase for phase in Phase if phase is not Phase.shrink])


def is_open(reason):
    """Mark a test of something that sites still tell; once they do not, the test says so."""
    return pytest.mark.xfail(reason=reason, raises=AssertionError)


def cases(values, still_told, reason):
    """Parameters of a test, of which it still fails for some."""
    return [
        pytest.param(v, marks=is_open(reason) if v in still_told else (), id=str(v)) for v in values
    ]


def policy_of(**rules):
    """The policy of `fedpca join`, with sign flips allowed, and with these rules."""
    return replace(JOINING, **{"allow": WORDS, **rules})


# plans ----------------------------------------------------------------------------------------------

SOLVERS = ("auto", "covariance", "lanczos", "subspace-iteration", "local-power", "faps")
RANKS = (2, None, 0.9, "auto", "gap")
NO_NOISE = math.inf


def pca(solver="covariance", k=None, **parameters):
    """A plan of `FederatedPCA` without noise."""
    given = {"solver": solver, "n_components": k, "max_rounds": 12, "missing": "error"}
    return RunPlan("", "FederatedPCA", given | parameters)


def private(solver="covariance", epsilon=NO_NOISE, **settings):
    """A plan of `FederatedPCA` with privacy settings, by default without any noise."""
    given = {"delta": 1e-6, "row_bound": 50.0, "around": 0.0, "n_silent": 0, "n_products": 2}
    plain = Privacy(epsilon, **(given | settings)).to_plain()
    parameters = {"solver": solver, "n_components": 2, "max_rounds": 12}
    return RunPlan("", "FederatedPCA", parameters, privacy={PRIVATE: plain})


def plans():
    """Plans of every kind that needs only sums; the policies decide which of them pass."""
    for solver, k in itertools.product(SOLVERS, RANKS):
        yield pca(solver, k)
    for missing, scale, center in itertools.product(MISSING, (False, True), (True, False)):
        yield pca("lanczos", None, missing=missing, scale=scale, center=center)
        yield RunPlan(
            "",
            "verify",
            {"n_components": 2, "missing": missing, "scale": scale, "by_site": True},
        )
    yield pca("covariance", None, scale="binomial", maf=0.01, missing="mean")
    yield RunPlan("", "Diagnosis", dict(pca("auto", "auto").parameters))
    for solver, epsilon in itertools.product(
        ("covariance", "subspace-iteration"), (NO_NOISE, 1e4, 1.0)
    ):
        yield private(solver, epsilon)


def is_noisy_enough(plan, policy):
    """Whether the noise of a private plan alone keeps what the policy demands of one run."""
    if not plan.is_private:
        return False
    mu = Privacy.of(plan).mu
    return epsilon_of(mu, policy.delta) <= policy.run_epsilon * (1 + 1e-6)


def admitted(policy, given=None):
    """The plans that a policy admits, and all questions that they may ask."""
    found = [plan for plan in given or plans() if refusal_of(policy, named(plan)) is None]
    scripts = [find_script(named(plan)) for plan in found]
    return found, {q.name: q for script in scripts for q in script.order.questions()}


def named(plan):
    return replace(plan, run="a run", sites=dict.fromkeys(ROSTER, ""))


# sites ----------------------------------------------------------------------------------------------


class Hospital:
    """A site with a policy, a folder, and rows in a file that can change between runs."""

    def __init__(self, folder, rows, policy, *, kind=".npy", weights=None, memory_limit=None):
        folder.mkdir(parents=True, exist_ok=True)
        self.kind, self.path = kind, folder / f"rows{kind}"
        self._time = 1_700_000_000
        self.write(rows, weights)
        options = {} if memory_limit is None else {"memory_limit": memory_limit}
        if weights is not None:
            options["weight"] = "weight"  # a column of the file
        self.site = Site(self.path, name="north", policy=policy, store=folder / "store", **options)
        self.policy = policy
        self.liar = Liar({"north": self.site.answer_bytes}, ROSTER)

    def write(self, rows, weights=None):
        """Replace the rows; the time of change is another one for sure."""
        if self.kind == ".npy":
            np.save(self.path, rows)
        elif self.kind == ".bed":
            write_fileset(self.path, rows, ["AG"] * rows.shape[1])
        else:
            table = {f"x{j}": column for j, column in enumerate(np.asarray(rows).T)}
            if weights is not None:
                table["weight"] = weights
            pq.write_table(pa.table(table), self.path)
        self._time += 10
        os.utime(self.path, (self._time, self._time))

    @property
    def variants(self):
        """The names of all columns, if they are variants, of which a run may choose some."""
        return self.site.source.rows.features if self.kind == ".bed" else None

    def walk(self, plan, rng, numbers, **options):
        """Begin a run, and return the walk; it has a refusal if the site refuses the plan."""
        return Walk(self, plan, rng, numbers, **options)


@dataclass
class Asked:
    """A question that a site has answered in a run."""

    name: str
    arrays: dict
    answer: dict


@dataclass
class Frame:
    """How a run treats rows at some moment, in the order of the site's own columns."""

    missing: int = 0
    order: np.ndarray | None = None
    mean: np.ndarray | None = None
    scale: np.ndarray | None = None


class Walk:
    """A run of a coordinator that asks anything that the plan's script lets it ask next.

    ``numbers`` draws the arrays; ``given`` fixes some of them by name or as "question.field".
    """

    def __init__(self, hospital, plan, rng, numbers, *, given=None):
        self.hospital, self.rng, self.numbers = hospital, rng, numbers
        self.given = dict(given or {})
        self.liar = hospital.liar
        self.asked, self.refusals = [], []
        self._fixed, self._counts, self._refused = {}, {}, set()
        self.names, self.d = None, None
        try:
            self.liar.begin_with(replace(plan, sites=self.liar.roster))
        except Refused as refused:
            self.plan = None
            self.refusals.append(str(refused))
            return
        self.plan = self.liar.plan
        self.script = find_script(self.plan)
        self.order = self.script.order

    @property
    def is_admitted(self):
        return self.plan is not None

    @property
    def next(self):
        """The questions that may come now, and have not been asked as often as they may."""
        if not self.is_admitted:
            return []
        most = {name: self.script.most_times(name, self.d or 1) for name in self.order.next()}
        return sorted(n for n in most if self._counts.get(n, 0) < most[n])

    @property
    def names_asked(self):
        return {each.name for each in self.asked}

    def go(self, n_questions, prefer=None):
        """Ask questions in random order until none is left or a site refuses; return this walk.

        If a question of ``prefer`` may come next, it does.
        """
        for _ in range(n_questions):
            options = [name for name in self.next if name not in self._refused]
            if not options:
                break
            wanted = [name for name in options if prefer and name in prefer]
            name = str(self.rng.choice(wanted or options))
            self._refused = {*self._refused, name} if self.ask(name) is None else set()
        return self

    def ask(self, name, **arrays):
        """Ask a question with drawn arrays; return the answer, or None if the site refuses."""
        question = find_question(name)
        drawn = arrays or self._arrays(question)
        try:
            answer = self.liar.ask_one(name, **drawn)
        except Refused as refused:
            self.refusals.append(f"{name}: {refused}")
            self.liar.go_back()
            return None
        self.order = self.order.after(name)
        self._counts[name] = self._counts.get(name, 0) + 1
        for key, array in drawn.items():
            self._fixed.setdefault(key, array)
        if name == "column_names":
            self.d, self.names = int(answer["n_features"]), names_from_bytes(answer["features"])
        elif name == "use_variants":
            self.names = names_from_bytes(drawn["features"])
            self.d = len(self.names)
        self.asked.append(Asked(name, drawn, answer))
        return answer

    def _arrays(self, question):
        """Arrays within the declared bounds of a question, of its script, and of what is fixed."""
        lengths, drawn = {"d": self.d}, {}
        by = {w.split()[-1] for each in question.bounds.values() for w in each if " by " in w}
        for key in sorted(question.asks, key=lambda key: key not in by):
            drawn[key] = self._array(question, key, lengths, drawn)
        return {key: drawn[key] for key in question.asks}

    def _array(self, question, key, lengths, drawn):
        (dtype, dimensions), full = question.asks[key], f"{question.name}.{key}"
        words = list(question.bounds.get(key, ()))
        value = None
        for each in (key, full):
            words += split_words(self.script.bounds.get(each, ""))
            value = self.script.values.get(each, value)
        if callable(value):
            value = value(self._counts.get(question.name, 0))
        is_fixed = "fixed" in words or full in self.script.fixed
        if value is not None:
            shape = [lengths[each] for each in dimensions]
            return np.full(shape, value, np.dtype(dtype))
        if is_fixed and key in self._fixed:
            return self._fixed[key]
        if full in self.given or key in self.given:
            chosen = self.given[full if full in self.given else key]
            return chosen if not callable(chosen) else chosen(lengths)
        if np.dtype(dtype) == np.uint8:
            names = self.names
            if names is not None and key == "features":
                kept = len(names) if dimensions == ("bytes",) else max(2, len(names) - 1)
                names = [names[i] for i in self.rng.permutation(len(names))[:kept]]
            return names_to_bytes(names)
        if np.dtype(dtype) == np.int64 and not dimensions:
            return np.int64(self.numbers.whole(self.rng, words))
        if dimensions == ("d",):
            low = next((each for each in words if ".." in each), None)
            draw = self.numbers.point if low is None else self.numbers.scale
            return draw(self.rng, self.d)
        if dimensions == ("k",):  # which group each column of a block belongs to
            groups = self.rng.choice(MOST_COUNT, size=2, replace=False)
            lengths["k"] = 2 * min(2, self.d)
            return np.repeat(groups, lengths["k"] // 2).astype(np.int64)
        assert dimensions == ("d", "k"), f"no numbers are drawn for {full} of {dimensions}"
        if any(" by " in word for word in words):
            halves = [self.numbers.block(self.rng, self.d, lengths["k"] // 2) for _ in range(2)]
            return np.hstack(halves)
        least = 0 if key == "removed" else 1
        most = self.d // 2 if key == "removed" else self.d
        for word in words:
            if word.startswith("columns "):
                most = min(most, int(word.partition("..")[2]))
        return self.numbers.block(self.rng, self.d, int(self.rng.integers(least, most + 1)))


@dataclass
class Plain:
    """Numbers such as honest coordinators send: near the rows, and of their size."""

    rows: np.ndarray

    def whole(self, rng, words):
        for word in words:
            low, dots, high = word.partition("..")
            if dots:
                low, high = int(float(low)), float(high)
                return int(rng.integers(low, min(high, low + MOST_COUNT) + 1))
            if word.startswith("one of "):
                return int(rng.choice([float(each) for each in word.split()[2:]]))
        return int(rng.integers(2**31))

    def point(self, rng, d):
        return np.nan_to_num(self.rows[:, :d]).mean(axis=0) + rng.normal(size=d) / 8

    def scale(self, rng, d):
        return rng.uniform(0.5, 2.0, d)

    def block(self, rng, d, k):
        return np.linalg.qr(rng.normal(size=(d, k)))[0] if k else np.empty((d, 0))


@dataclass
class Hostile(Plain):
    """Numbers anywhere within the bounds, most of them where sums lose digits or rows stand out."""

    def point(self, rng, d):
        rows = np.nan_to_num(self.rows[:, :d])
        largest = np.abs(rows).max(axis=0)
        kind = rng.integers(5)
        if kind == 0:
            return np.zeros(d)
        if kind == 1:
            return rows[rng.integers(len(rows))].copy()
        if kind == 2:
            return -largest * 2.0 ** rng.integers(0, 20)  # as far away as a site accepts
        if kind == 3:
            return np.median(rows, axis=0)
        return super().point(rng, d)

    def scale(self, rng, d):
        return super().scale(rng, d) * 10.0 ** rng.choice([0, 0, -3, 6], size=d)

    def block(self, rng, d, k):
        if not k or d < 2:
            return super().block(rng, d, k)
        kind = rng.integers(4)
        if kind == 0:
            return np.eye(d)[:, rng.permutation(d)[:k]]
        if kind == 1:  # columns that nearly cancel
            turned = np.eye(d)[:, rng.permutation(d)]
            i, j = rng.permutation(d)[:2]
            turned[i] += turned[j]
            return np.linalg.qr(turned)[0][:, :k]
        if kind == 2:  # unit vectors with a little of another column, which rounding swallows
            columns = rng.permutation(d)
            V = np.eye(d)[:, columns[:k]]
            V[columns[-1], 0] += 2.0 ** -rng.integers(28, 60) if k < d else 0.0
            return V
        return super().block(rng, d, k)


# what rows add to answers -----------------------------------------------------------------------------


# answers that are no sums over rows, and what they are functions of: n, the mean, and A'A of the run;
# `test_tables_with_the_same_sums_get_the_same_answers` shows that they are
FUNCTIONS_OF_SUMS = {
    "draw_signs": (),
    "local_power_steps": ("Y",),
    "consensus_step": ("Y", "stop_value"),
    "energy_within": ("penalty", "norm"),
    "explained_energy": ("explained", "total"),
}
# each sum is over rows with signs that only the site knows; only the sums of squares have no signs
SIGNED = {"flipped_triangles": ("triangles",), "flipped_product": ("Y",)}


def added_by(rows, weights, walk):
    """Yield (question, field, what each row adds, the answer) for all sums over rows in a walk.

    ``rows``, ``(n, d)``, may be any rows; the answers are those of the rows that the site has.
    """
    table, variants = rows, walk.hospital.variants
    weights = np.ones(len(rows)) if weights is None else weights
    frame, removed, names = Frame(), None, None
    for asked in walk.asked:
        name, given, answer = asked.name, asked.arrays, asked.answer
        if name in ("column_names", "use_variants"):
            names = names_from_bytes((answer if name == "column_names" else given)["features"])
            if variants is not None:
                rows = table[:, [variants.index(each) for each in names]]
            continue
        if name in ("count_and_sum", "noisy_count_and_sum"):
            wanted = names_from_bytes(given["features"])
            order = slice(None)
            if wanted is not None and names is not None:
                order = np.array([names.index(each) for each in wanted])
            frame = Frame(int(given.get("missing", 0)), order)
        if name == "squares":
            frame = replace(frame, mean=given["mean"], scale=np.ones_like(given["mean"]))
        elif "mean" in given and not name.startswith("noisy"):
            frame = replace(frame, mean=given["mean"], scale=given["scale"])
        if name == "draw_signs":
            removed = given["removed"]
        is_whole = ~np.isnan(rows).any(axis=1)
        counts = (weights > 0) & (is_whole if frame.missing == DROP else True)
        each = np.where(counts, weights, 0.0)
        own = rows[:, frame.order] if frame.order is not None else rows
        gaps = np.isnan(own)
        if name == "count_and_sum":
            yield name, "n", counts.astype(float), answer["n"]
            yield name, "weight", each, answer["weight"]
            total = np.where(gaps, 0.0, own) * each[:, None]
            total[~counts] = 0.0
            yield name, "total", total, answer["total"]
            if frame.missing == MEAN:
                yield name, "present", each[:, None] * ~gaps, answer["present"]
            continue
        if name in ("noisy_count_and_sum", "noisy_scatter", "noisy_product"):
            settings = Privacy.of(walk.plan)
            if not math.isinf(settings.epsilon):
                continue  # the noise hides what a row adds, or the answer is counted without noise
            yield from _on_grid(name, settings, own, given, answer)
            continue
        if name in FUNCTIONS_OF_SUMS and name != "energy_within":
            continue
        A = np.where(gaps, 0.0, (own - frame.mean) / frame.scale)
        A = np.where(counts[:, None], A, 0.0) * np.sqrt(each)[:, None]
        if name in ("squares", "column_squares"):
            yield name, "squares", A**2, answer["squares"]
        elif name == "standardize":
            yield name, "energy", (A**2).sum(axis=1), answer["energy"]
        elif name == "covariance_triangle":
            lower = np.tril_indices(A.shape[1])
            C = unpack_triangle(answer["triangle"])
            yield name, "triangle", A[:, lower[0]] * A[:, lower[1]], C[lower]
        elif name == "covariance_product":
            Y = A[:, :, None] * (A @ given["Z"])[:, None, :]
            yield name, "Y", Y, answer["Y"]
        elif name == "energy_within":
            T = A @ given["Z"]
            yield name, "within", T[:, :, None] * T[:, None, :], answer["within"]
        elif name == "flipped_triangles":
            left = (A - (A @ removed) @ removed.T) ** 2
            for flip in answer["triangles"]:
                yield name, "diagonal", left, unpack_triangle(flip).diagonal()
        else:
            assert name in SIGNED, f"nobody says what a row adds to the answers to {name}"


def _on_grid(name, settings, own, given, answer):
    """What rows add to answers of private runs without noise, if none is beyond the bound."""
    bound = settings.row_bound
    if name == "noisy_count_and_sum":
        yield name, "n", np.full(len(own), float(COUNT_UNIT)), answer["n"]
        total = (own - settings.around) * (RADIUS / (AROUND_TIMES * bound))
        yield name, "total", total, answer["total"]
        return
    A = (own - given["mean"]) * (RADIUS / bound)
    if name == "noisy_scatter":
        lower = np.tril_indices(A.shape[1])
        yield name, "triangle", A[:, lower[0]] * A[:, lower[1]], answer["triangle"]
    else:
        yield name, "Y", A[:, :, None] * (A @ given["Z"])[:, None, :], answer["Y"]


def singled_out(parts, least):
    """Return the smallest sets of few rows that a combination of answers singles out.

    ``parts`` has, by name, the number of rows of a kind and what rows of that kind add to the answers,
    ``(draws, entries)``, for many draws of their values. A combination singles out a set if it
    vanishes for all other kinds, whatever the values, and not within the set. Sets with ``least``
    rows or more do not count. The result has (names, whether the combination depends on values).
    """
    names = [name for name, (n, _) in parts.items() if 0 < n < least]
    found = []
    for size in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, size):
            if sum(parts[name][0] for name in chosen) >= least:
                continue
            if any(set(small) <= set(chosen) for small, tells in found if tells):
                continue
            outside = np.vstack([added for name, (_, added) in parts.items() if name not in chosen])
            free = _vanishing(outside)
            for tells in (True, False):
                within = [parts[name][1] @ free for name in chosen]
                if tells:
                    within = [each - each.mean(axis=0) for each in within]
                largest = max((np.abs(each).max(initial=0.0) for each in within), default=0.0)
                if largest > 1e-6:
                    found.append((chosen, tells))
                    break
    return found


def _vanishing(added):
    """An orthonormal basis of the combinations of answers to which these rows add nothing."""
    _, s, Vt = np.linalg.svd(added, full_matrices=True)
    rank = int((s > SETTLED * s[0]).sum()) if s.size and s[0] > 0 else 0
    return Vt[rank:].T
