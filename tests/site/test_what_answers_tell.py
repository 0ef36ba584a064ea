"""No sequence of admitted questions tells about fewer rows than the policy says, whoever asks.

Honest sums depend on every row. With as many answers as rows, some combination of answers always gives
one row, but only someone who knows the other rows can compute it. What a coordinator must not have is a
combination that gives a few rows whatever the other rows are. Each test therefore keeps what a table's
rows have in common (gaps, flags, when they came or went) and draws their values again and again. A
combination of answers to which all other rows add nothing, in every draw, singles out the rows that are
left. There is one if and only if those other rows' additions, stacked, have a smaller rank.

Only combinations with fixed coefficients are looked for. Not covered: programs that are allowed by name
(robust, personalized, merge, and the like), factoring sums over few rows, guessing values from their
distribution, averaging away noise or signs over many runs, and time.
`docs/privacy.md` says the same in "What the general test covers".
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from admissible import (
    MOST_COUNT,
    Hospital,
    Plain,
    added_by,
    admitted,
    cases,
    is_noisy_enough,
    is_open,
    pca,
    plans,
    policy_of,
    private,
    search,
    singled_out,
)
from fedpca.protocol.script import _SCRIPTS
from fedpca.solvers import SOLVERS
from fedpca.solvers.common_features import names_to_bytes

NAN = float("nan")
LEAST = 3  # rows that a number must stand on, so that tables stay small


# which rows a combination of answers can single out ---------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Rows that have their gaps and flags in common, and are there at the same times."""

    size: int
    gaps: frozenset = frozenset()  # columns without a value
    flags: frozenset = frozenset()  # of the columns of flags, those that are 1
    times: frozenset = frozenset({0, 1})  # before the rows change, and after


@dataclass(frozen=True)
class Structure:
    """All of a table but its values."""

    d: int  # columns of measurements
    n_flags: int
    has_constant: bool
    groups: tuple
    has_weights: bool = False
    are_genotypes: bool = False

    def rows_of(self, group, n, rng):
        """Any n rows of a group."""
        rows = rng.normal(size=(n, self.d)) + 0.5
        if self.are_genotypes:
            rows = rng.integers(0, 3, (n, self.d)).astype(float)
        rows[:, sorted(group.gaps)] = NAN
        flags = np.zeros((n, self.n_flags))
        flags[:, sorted(group.flags)] = 1.0
        return np.hstack([rows, flags, np.full((n, int(self.has_constant)), 2.0)])

    def table(self, time, seed):
        """The rows at a time, and their weights; rows that stay are the same at both times."""
        rows, weights = [], []
        for i, group in enumerate(self.groups):
            if time in group.times:
                rng = np.random.default_rng([seed, i])
                rows.append(self.rows_of(group, group.size, rng))
                weights.append(self.weights_of(group.size, rng))
        return np.vstack(rows), np.concatenate(weights) if self.has_weights else None

    def weights_of(self, n, rng):
        """Any weights of n rows, or None."""
        return rng.uniform(0.5, 2.0, n) if self.has_weights else None

    @property
    def kind(self):
        """The kind of file that can hold such rows."""
        return ".bed" if self.are_genotypes else ".parquet" if self.has_weights else ".npy"


USUAL = Group(30)  # rows without gaps and flags; enough for every rule about their number


def subsets(n):
    return [frozenset(each) for k in range(n + 1) for each in itertools.combinations(range(n), k)]


@st.composite
def structures(draw, *, n_gapped=0, n_flags=0, times=((0, 1),)):
    """A structure with many usual rows, enough rows with each flag, and few or enough others."""
    kinds = list(itertools.product(subsets(n_gapped), subsets(n_flags), map(frozenset, times)))
    sizes = st.sampled_from([0, 1, LEAST, LEAST + 1])
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5, unique=True))
    groups = [Group(draw(sizes), *kind) for kind in chosen]
    flagged = [Group(LEAST, flags=frozenset({0}))] if n_flags == 1 else []
    kept = tuple(group for group in (USUAL, *flagged, *groups) if group.size)
    # that a row has two flags can be told, and then its weight as well
    has_weights = draw(st.booleans()) and n_flags < 2
    return Structure(n_gapped + 2, n_flags, draw(st.booleans()), kept, has_weights)


EXACT = [pca(missing=missing) for missing in ("mean", "mean", "drop", "error")]
EXACT += [pca("lanczos", None, missing=missing, scale=True) for missing in ("mean", "drop")]
WITHOUT_NOISE = [private(), private("subspace-iteration")]
BOTH, CHANGING = ((0, 1),), ((0, 1), (0,), (1,))


def parts_of(structure, walks, seed):
    """What rows of each group add to all answers of some walks, for random values."""
    rng = np.random.default_rng([seed, 99])
    n = 4 + (structure.d + 1) * (structure.d + 2)  # twice what products of two values span
    parts = {}
    for i, group in enumerate(structure.groups):
        rows, weights = structure.rows_of(group, n, rng), structure.weights_of(n, rng)
        columns = []
        for time, walk in walks:
            for _, _, added, _ in added_by(rows, weights, walk):
                columns.append((time in group.times) * added.reshape(n, -1))
        parts[i] = (group.size, np.hstack(columns))
    size = np.sqrt(sum((added**2).sum(axis=0) for _, added in parts.values()))
    return {i: (n, added / np.maximum(size, 1e-300)) for i, (n, added) in parts.items()}


def assert_is_sum(name, key, added, answer):
    """An answer is the sum of what `added_by` says that each row adds to it."""
    # private runs put each row on a grid first
    share, units = (1e-3, len(added)) if name.startswith("noisy") else (1e-9, 1e-12)
    off = np.abs(added.sum(axis=0) - answer)
    largest = np.abs(added).sum(axis=0).max(initial=0.0)
    assert (off <= share * largest + units).all(), f"{key} of {name} is not the sum of its rows"


def walks_of(structure, runs, seed, folder):
    """The runs that a site with such rows takes part in, as (time, walk)."""
    tables = [structure.table(time, seed) for time in (0, 1)]
    rules = policy_of(min_count=LEAST)
    rows, weights = tables[0]
    hospital = Hospital(folder, rows, rules, kind=structure.kind, weights=weights)
    now = 0
    for number, (time, plan, *fixed) in enumerate(runs):
        if time != now:
            now, (rows, weights) = time, tables[time]
            hospital.write(rows, weights)
        rng = np.random.default_rng([seed, number])
        given = fixed[0](hospital) if fixed else None
        walk = hospital.walk(plan, rng, Plain(rows), given=given).go(6)
        if is_noisy_enough(plan, rules):
            continue  # whatever such a run tells is hidden by its noise
        for name, key, added, answer in added_by(rows, weights, walk):
            assert_is_sum(name, key, added, answer)
        yield time, walk


def assert_few_stay_hidden(structure, runs, seed, folder):
    """Ask all that the runs may ask; no combination of the answers depends on few rows alone."""
    walks = list(walks_of(structure, runs, seed, folder))
    names = [[each.name for each in walk.asked] for _, walk in walks]
    if not any("total" in asked.answer for _, walk in walks for asked in walk.asked):
        return  # the site has refused all runs
    for chosen, tells_values in singled_out(parts_of(structure, walks, seed), LEAST):
        groups = [structure.groups[i] for i in chosen]
        # that a few rows have two flags, or a flag and a gap, can be told, but nothing else about them
        is_known = bool(structure.n_flags) and not tells_values
        what = "values" if tells_values else "the number"
        assert is_known, f"answers tell {what} of {groups} in {structure}; asked {names}"


ALL_AT_ONCE = [(0, plan) for plan in EXACT]
FEW, ENOUGH = 1, LEAST
SIZES = list(itertools.product((0, FEW, ENOUGH), repeat=3))


def crossing(first, second, both, **more):
    """Rows with gaps in one of two columns, in the other, and in both."""
    sizes = zip(subsets(2)[1:], (first, second, both), strict=True)
    groups = (Group(n, gaps) for gaps, n in sizes if n)
    return Structure(4, 0, False, (USUAL, *groups), **more)


BY_FLAG = "min_count looks at each column, and not at flags among rows that are left out or change"


def test_usual_rows_are_summed(tmp_path):
    """The tests below would hold if a site refused everything."""
    for i, structure in enumerate((crossing(0, 0, 0), crossing(0, 0, 0, has_weights=True))):
        walks = walks_of(structure, [*ALL_AT_ONCE, (1, pca())], 0, tmp_path / str(i))
        assert all(len(walk.names_asked) > 2 for _, walk in walks)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_rows_are_told_apart_by_gaps_in_two_columns(sizes, tmp_path):
    assert_few_stay_hidden(crossing(*sizes), ALL_AT_ONCE, 0, tmp_path)


def without(*columns):
    """What a run fixes that leaves out some of a site's variants."""

    def fixed(hospital):
        kept = [name for i, name in enumerate(hospital.variants) if i not in columns]
        return {"features": names_to_bytes(kept)}

    return fixed


OF_VARIANTS = [
    (0, pca(missing=missing, scale="binomial", maf=0.01), without(*columns))
    for missing in ("mean", "drop")
    for columns in ((), (0,), (1,), (0, 1))
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_samples_are_told_apart_by_the_choice_of_variants(sizes, tmp_path):
    structure = crossing(*sizes, are_genotypes=True)
    assert_few_stay_hidden(structure, OF_VARIANTS, 0, tmp_path)


@search(30)
@given(structure=structures(n_gapped=3), seed=st.integers(0, 99))
def test_no_rows_are_told_apart_by_gaps_in_three_columns(structure, seed, tmp_path_factory):
    assert_few_stay_hidden(structure, ALL_AT_ONCE, seed, tmp_path_factory.mktemp("site"))


@search(30)
@given(structure=structures(n_flags=2), seed=st.integers(0, 99))
def test_no_rows_are_told_apart_by_flags(structure, seed, tmp_path_factory):
    assert_few_stay_hidden(structure, ALL_AT_ONCE, seed, tmp_path_factory.mktemp("site"))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_rows_are_told_apart_by_two_flags(sizes, tmp_path):
    """Where two flags agree but for a few rows, the sums over rows with either differ by these rows."""
    kinds = zip(subsets(2)[1:], sizes, strict=True)
    groups = (Group(n, flags=flags) for flags, n in kinds if n)
    assert_few_stay_hidden(Structure(2, 2, False, (USUAL, *groups)), ALL_AT_ONCE, 0, tmp_path)


def flagged(plain, with_flag, *, gaps=frozenset(), times=frozenset({0, 1})):
    """Rows of a kind without and with a flag that others have as well."""
    flag = frozenset({0})
    groups = (Group(n, gaps, f, times) for n, f in ((plain, frozenset()), (with_flag, flag)) if n)
    usual = (USUAL, Group(LEAST, flags=flag))
    return Structure(3, 1, False, (*usual, *groups))


MANY = 8  # rows enough for four columns; all columns of fewer rows would not be shown
PAIRS = list(itertools.product((0, FEW, ENOUGH, MANY), repeat=2))
TOLD = {(FEW, MANY), (MANY, FEW)}


@pytest.mark.parametrize("sizes", cases(PAIRS, TOLD, BY_FLAG))
def test_no_rows_with_gaps_are_told_apart_by_a_flag(sizes, tmp_path):
    assert_few_stay_hidden(flagged(*sizes, gaps=frozenset({0})), ALL_AT_ONCE, 0, tmp_path)


@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("sizes", cases(PAIRS, TOLD, BY_FLAG))
def test_no_rows_that_came_or_went_are_told_apart_by_a_flag(sizes, time, tmp_path):
    structure = flagged(*sizes, times=frozenset({time}))
    assert_few_stay_hidden(structure, [(0, pca()), (1, pca())], 0, tmp_path)


@is_open(BY_FLAG)
@search(30)
@given(structure=structures(n_gapped=1, n_flags=1), seed=st.integers(0, 99))
def test_no_rows_are_told_apart_by_flags_and_gaps(structure, seed, tmp_path_factory):
    assert_few_stay_hidden(structure, ALL_AT_ONCE, seed, tmp_path_factory.mktemp("site"))


@st.composite
def runs_of(draw, plans):
    """A few runs before the rows change, and a few after."""
    one = st.lists(st.sampled_from(plans), min_size=1, max_size=3)
    return [(time, plan) for time in (0, 1) for plan in draw(one)]


@search(15)
@given(structure=structures(times=CHANGING), runs=runs_of(EXACT), seed=st.integers(0, 99))
def test_no_rows_are_told_apart_by_when_they_came_or_went(structure, runs, seed, tmp_path_factory):
    assert_few_stay_hidden(structure, runs, seed, tmp_path_factory.mktemp("site"))


@search(30)
@given(
    structure=structures(n_gapped=2, times=CHANGING), runs=runs_of(EXACT), seed=st.integers(0, 99)
)
def test_no_rows_with_gaps_are_told_apart_by_when_they_came_or_went(
    structure, runs, seed, tmp_path_factory
):
    assert_few_stay_hidden(structure, runs, seed, tmp_path_factory.mktemp("site"))


@pytest.mark.long
@is_open(BY_FLAG)
@search(30)
@given(
    structure=structures(n_gapped=2, n_flags=1, times=CHANGING),
    runs=runs_of(EXACT),
    seed=st.integers(0, 99),
)
def test_no_rows_are_told_apart_by_anything(structure, runs, seed, tmp_path_factory):
    assert_few_stay_hidden(structure, runs, seed, tmp_path_factory.mktemp("site"))


@search(30)
@given(
    structure=structures(times=CHANGING),
    runs=runs_of([*EXACT[:2], *WITHOUT_NOISE]),
    seed=st.integers(0, 99),
)
def test_private_runs_with_too_little_noise_tell_of_no_rows(
    structure, runs, seed, tmp_path_factory
):
    assert_few_stay_hidden(structure, runs, seed, tmp_path_factory.mktemp("site"))


# what is covered --------------------------------------------------------------------------------------

GATHERING = policy_of(gather=True, min_count=LEAST)


def test_every_question_that_a_policy_may_admit_is_asked(tmp_path):
    """The search above would have gaps if it did not know some question."""
    rng = np.random.default_rng(0)
    rows = np.round(rng.normal(size=(120, 4)), 1)
    gapped = rows.copy()
    gapped[:LEAST, 0] = NAN
    genotypes = rng.integers(0, 3, (120, 5)).astype(float)
    open_plans, questions = admitted(GATHERING)
    asked = set()
    for i, plan in enumerate(open_plans):
        tables = {".npy": rows, ".parquet": gapped, ".bed": genotypes}
        for kind, table in tables.items():
            if kind == ".bed" and plan.parameters.get("scale") != "binomial":
                continue  # no other plan has questions of its own for genotypes
            hospital = Hospital(tmp_path / f"{i}{kind}", table, GATHERING, kind=kind)
            new = set(questions) - asked
            walk = hospital.walk(plan, rng, Plain(table)).go(4 * MOST_COUNT, prefer=new)
            asked |= walk.names_asked
            for name, key, added, answer in added_by(table, None, walk):
                assert_is_sum(name, key, added, answer)
    assert asked == set(questions)


def test_no_other_program_or_solver_needs_only_these_words():
    """A new program must be added to the plans of `admissible`, or need a word of its own."""
    with_plans = {plan.program for plan in plans()}
    others = set(_SCRIPTS) - with_plans
    assert others == {"PersonalizedPCA", "RobustPCA", "SiteMap"}, "of which none is in WORDS"
    solvers = {plan.solver for plan in plans()}
    for name, solver in SOLVERS.items():
        is_usual = solver.guarantee == "exact" and not solver.seen
        assert (name in solvers) == is_usual, name
