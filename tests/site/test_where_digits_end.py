"""Answers depend on rows through honest sums alone: rounding tells nothing about a single row.

Two tables can have the same number of rows, the same sums, and the same sums of products, although no
row of one is in the other. A site must give both the same answers, whatever is asked. This also shows
which answers are functions of sums, which `test_what_answers_tell` relies on.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from admissible import (
    QUARTER_TURN,
    SIGNED,
    Hospital,
    Hostile,
    Plain,
    admitted,
    pca,
    policy_of,
    search,
)
from fedpca.linalg.dense import unpack_triangle
from fedpca.solvers.common_features import names_from_bytes

NAN = float("nan")
N, D = 96, 4  # a site flips signs if 60 rows or more differ in each column
POLICY = policy_of(gather=True)
PLANS = [plan for plan in admitted(POLICY)[0] if not plan.is_private]
STEP_BITS, LAST_BITS = 46, 51  # sums are right to 2^-46 of the norms, and have no bit below 2^-51


@dataclass
class PowersOfTwo(Hostile):
    """Numbers of which the scales change no digits."""

    def scale(self, rng, d):
        return 2.0 ** rng.integers(-20, 20, d)


@dataclass
class Exact(PowersOfTwo):
    """Numbers with few digits where rows are centered and scaled, so that sums are exact."""

    def point(self, rng, d):
        return np.round(super().point(rng, d))


def table_of(rng, *, gaps):
    """Rows of even numbers, with gaps in the first columns of the first rows."""
    rows = 2.0 * rng.integers(-50, 50, (N, D)) + 40
    if gaps:
        rows[:8, 0] = rows[8:16, 1] = NAN
    return rows


def with_the_same_sums(rows, rng):
    """Other rows with the same sums and products: groups of four rows with equal gaps are turned."""
    turned = rows.copy()
    for _ in range(3):
        for start in range(0, len(rows), 8):
            four = start + rng.permutation(8)[:4]
            turned[four] = QUARTER_TURN @ turned[four]
    assert not (turned == rows)[~np.isnan(rows)].all()
    return turned


def both_walks(rows, others, plan, seed, folder, numbers=Exact, **options):
    """The answers to the same questions about two tables, in a run that both sites admit."""
    walks = []
    for name, table in (("one", rows), ("other", others)):
        hospital = Hospital(folder / name, table, POLICY, **options)
        walk = hospital.walk(plan, np.random.default_rng(seed), numbers(rows)).go(9)
        walks.append(walk)
    assert [each.name for each in walks[0].asked] == [each.name for each in walks[1].asked]
    for one, other in zip(*(walk.asked for walk in walks), strict=True):
        for key, array in one.arrays.items():
            assert array.tobytes() == other.arrays[key].tobytes()
        yield one, other


def without_signs(asked):
    """An answer without the numbers that depend on secret signs."""
    hidden = SIGNED.get(asked.name, ())
    shown = {key: array for key, array in asked.answer.items() if key not in hidden}
    if asked.name == "flipped_triangles":
        shown["squares"] = [unpack_triangle(t).diagonal() for t in asked.answer["triangles"]]
    return shown


@search(30)
@given(
    plan=st.sampled_from(PLANS),
    seed=st.integers(0, 999),
    kind=st.sampled_from([".npy", ".parquet"]),
)
def test_tables_with_the_same_sums_get_the_same_answers(plan, seed, kind, tmp_path_factory):
    rng = np.random.default_rng(seed)
    rows = table_of(rng, gaps=plan.parameters["missing"] != "error")
    others = with_the_same_sums(rows, rng)
    folder = tmp_path_factory.mktemp("sites")
    for one, other in both_walks(rows, others, plan, seed, folder, kind=kind):
        for key, array in without_signs(one).items():
            same = without_signs(other)[key]
            size = max(np.abs(array).max(initial=0.0), 1e-300)
            off = np.abs(np.asarray(array) - same).max(initial=0.0)
            # iterations at a site multiply the errors of rounding
            assert off <= 1e-9 * size, (one.name, key, off / size)


# one row beyond a threshold -------------------------------------------------------------------------


@search(15)
@given(seed=st.integers(0, 999), far=st.integers(8, 18), bits=st.integers(30, 56))
def test_rounding_never_counts_the_rows_beyond_a_threshold(seed, far, bits, tmp_path_factory):
    """Removing ``e_c + s e_key`` rounds ``s a_key`` to whole units of a column c that is far away."""
    rng = np.random.default_rng(seed)
    rows = table_of(rng, gaps=False)
    c, key = rng.permutation(D)[:2]
    rows[:, c] = 2.0 * (np.arange(N) % 3)
    others = rows.copy()
    for start in range(0, N, 4):
        others[start : start + 4] = QUARTER_TURN @ rows[start : start + 4]
    mean = np.zeros(D)
    mean[c] = -(2.0**far)
    V = np.eye(D)[:, [c]]
    V[key] = 2.0**-bits
    told = []
    for name, table in (("one", rows), ("other", others)):
        hospital = Hospital(tmp_path_factory.mktemp(name), table, POLICY)
        plan = pca("covariance", "auto")
        chosen = {"mean": mean, "scale": np.ones(D), "removed": V}
        walk = hospital.walk(plan, rng, Plain(rows), given=chosen)
        for question in (
            "column_names",
            "count_and_sum",
            "covariance_triangle",
            "column_squares",
            "draw_signs",
            "flipped_triangles",
        ):
            walk.ask(question)
        if not walk.asked or walk.asked[-1].name != "flipped_triangles":
            return  # the site refuses to remove such directions
        told.append(unpack_triangle(walk.asked[-1].answer["triangles"][0])[c, c])
    assert told[0] == told[1]


# digits ---------------------------------------------------------------------------------------------


def exact_scatter(rows, mean, scale):
    """A'A as fractions, and the norms of the columns of A."""
    A = [
        [
            (Fraction(x) - Fraction(m)) / Fraction(s)
            for x, m, s in zip(row, mean, scale, strict=True)
        ]
        for row in rows.tolist()
    ]
    d = len(mean)
    C = [[sum(row[i] * row[j] for row in A) for j in range(d)] for i in range(d)]
    return C, np.sqrt([float(C[i][i]) for i in range(d)])


def has_bits_below(number, least):
    """Whether a float is no multiple of the largest power of two up to ``least``."""
    unit = 2.0 ** np.floor(np.log2(least)) if least > 0 else 1.0
    return bool(np.fmod(number, unit) != 0)


def assert_is_right(name, number, exact, size):
    """A sum of products is right to 2^-46 of the norms that it comes from."""
    off = abs(Fraction(float(number)) - exact)
    assert off <= Fraction(size) / 2**STEP_BITS, (name, float(off) / size)


def assert_ends(name, number, exact, size):
    """A sum of products is right to 2^-46 of the norms that it comes from, and ends there."""
    assert_is_right(name, number, exact, size)
    assert not has_bits_below(float(number), size / 2**LAST_BITS), (name, float(number), size)


@search(15)
@given(
    seed=st.integers(0, 999),
    kind=st.sampled_from([".npy", ".parquet"]),
    name=st.sampled_from(["covariance_triangle", "squares", "standardize", "column_squares"]),
)
def test_sums_of_products_end_where_the_digits_of_the_rows_end(seed, kind, name, tmp_path_factory):
    """In a scale of powers of two, which changes no digits."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(20, D)) * [1, 1, 1e-3, 1e4] + [0, 3, 100, 0]
    solver = "covariance" if name == "covariance_triangle" else "lanczos"
    plan = pca(solver, "auto", scale=name == "squares" or bool(rng.integers(2)))
    hospital = Hospital(tmp_path_factory.mktemp("site"), rows, POLICY, kind=kind)
    walk = hospital.walk(plan, rng, PowersOfTwo(rows)).go(
        8, prefer=("column_names", "count_and_sum", "column_squares")
    )
    frame, order = {"scale": np.ones(D)}, slice(None)
    for asked in walk.asked:
        if asked.name == "count_and_sum" and walk.names:
            wanted = names_from_bytes(asked.arrays["features"])
            order = [walk.names.index(each) for each in wanted]
        frame |= {key: asked.arrays[key] for key in ("mean", "scale") if key in asked.arrays}
        if asked.name == "squares":
            frame["scale"] = np.ones(D)
        if asked.name != name:
            continue
        C, norms = exact_scatter(rows[:, order], frame["mean"], frame["scale"])
        if name == "covariance_triangle":
            told = unpack_triangle(asked.answer["triangle"])
            for i, j in np.ndindex(D, D):
                assert_ends(name, told[i, j], C[i][j], norms[i] * norms[j])
        elif name == "standardize":
            # a sum of numbers that end, each where its own column says, so only its size is checked
            energy = sum(C[i][i] for i in range(D))
            assert_is_right(name, asked.answer["energy"], energy, float(energy))
        else:
            for i in range(D):
                assert_ends(name, asked.answer["squares"][i], C[i][i], norms[i] ** 2)
