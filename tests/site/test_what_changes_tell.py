"""Changes of few rows, directions and signs that few rows have, and refusals tell of no single row.

These are single cases of what `test_what_answers_tell` looks for in general, or what it cannot see,
because no answer is a sum: that a site refuses is an answer too.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from admissible import QUARTER_TURN, SIGNED, WORDS, Hospital, Plain, pca, policy_of
from fedpca.solvers.standardize import MAX_TIMES_TYPICAL

NAN = float("nan")
LEAST = 3  # rows that a number must stand on, so that tables stay small

MODES = ("mean", "drop", "error")
N, D = 20, 3


def edited(rows, kind, n, at, rng):
    """Rows of which n from a place on are changed, removed, or joined by others."""
    if kind == "removed":
        return np.delete(rows, np.arange(at, at + n), axis=0)
    more = rng.normal(size=(n, rows.shape[1]))
    if kind == "added":
        return np.vstack([rows, more])
    changed = rows.copy()
    changed[at : at + n] = more
    return changed


TWO_MODES = list(itertools.product(MODES, repeat=2))


@pytest.mark.parametrize("kind", ["changed", "removed", "added"])
@pytest.mark.parametrize("modes", TWO_MODES, ids=str)
def test_no_run_follows_a_change_of_few_rows(modes, kind, tmp_path):
    """Whatever becomes of gaps in either run, if the changed rows have none."""
    before, after = modes
    for n in range(1, LEAST):
        rng = np.random.default_rng(n)
        rows = rng.normal(size=(N, D))
        if "error" not in (before, after):
            rows[:LEAST, 0] = NAN
        hospital = Hospital(tmp_path / str(n), rows, policy_of(min_count=LEAST))
        first = hospital.walk(pca(missing=before), rng, Plain(rows)).go(8)
        assert first.names_asked == {"column_names", "count_and_sum", "covariance_triangle"}
        hospital.write(edited(rows, kind, n, N - LEAST, rng))
        second = hospital.walk(pca(missing=after), rng, Plain(rows)).go(8)
        assert second.names_asked <= {"column_names"}
        assert any("min_change" in each for each in second.refusals)


@pytest.mark.parametrize(("n_removed", "n_added"), [(6, 1), (1, 6), (6, 2), (2, 6), (6, 0), (6, 3)])
def test_many_removed_rows_do_not_hide_few_added_ones(n_removed, n_added, tmp_path):
    """Nor the other way around: someone may know the many."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(N, D))
    hospital = Hospital(tmp_path, rows, policy_of(min_count=LEAST))
    assert "count_and_sum" in hospital.walk(pca(), rng, Plain(rows)).go(8).names_asked
    hospital.write(edited(edited(rows, "removed", n_removed, 0, rng), "added", n_added, 0, rng))
    after = hospital.walk(pca(), rng, Plain(rows)).go(8)
    is_hidden = 0 < min(n_removed, n_added) < LEAST
    assert ("count_and_sum" in after.names_asked) == (not is_hidden)
    assert is_hidden == any("min_change" in each for each in after.refusals)


DISGUISES = {
    "a column more": lambda rows: np.column_stack([rows, np.arange(len(rows))]),
    "other units": lambda rows: 1000 * rows,
    "fewer digits": lambda rows: rows.astype(np.float32).astype(np.float64),
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_no_run_follows_a_change_of_few_rows_while_all_rows_look_different(disguise, tmp_path):
    """The difference of two sums is still that of the few rows."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(N, D))
    hospital = Hospital(tmp_path, rows, policy_of(min_count=LEAST))
    assert "count_and_sum" in hospital.walk(pca(), rng, Plain(rows)).go(8).names_asked
    after = DISGUISES[disguise](rows[1:])
    hospital.write(after)
    assert "count_and_sum" not in hospital.walk(pca(), rng, Plain(after)).go(8).names_asked
    hospital.write(DISGUISES[disguise](rows[LEAST:]))
    assert "count_and_sum" in hospital.walk(pca(), rng, Plain(after)).go(8).names_asked


def one_differs(rows):
    """Two columns, such as a value and its correction, are equal but for one row."""
    rows[:, 1] = rows[:, 0]
    rows[0, 1] += 1
    return rows


def two_differ(rows):
    """Two columns are equal but for fewer rows than a sum must cover."""
    rows[:, 1] = 3 * rows[:, 0] + 2
    rows[[4, 50], 1] += [1, -2]
    return rows


def one_has_no_category(rows):
    """Columns for the categories of a variable, of which one row has none."""
    rows[:, :3] = np.eye(3)[np.arange(len(rows)) % 3]
    rows[0, :3] = 0
    return rows


def as_many_columns_as_rows(rows):
    return rows[: rows.shape[1]]


ALONE = [one_differs, two_differ, one_has_no_category, as_many_columns_as_rows]


@pytest.mark.parametrize("change", ALONE, ids=lambda change: change.__name__)
def test_no_row_has_a_direction_to_itself(change, tmp_path):
    """The product of A'A with that direction is the row."""
    rng = np.random.default_rng(0)
    rows = change(rng.normal(size=(60, 8)))
    walk = Hospital(tmp_path, rows, policy_of(min_count=LEAST)).walk(pca(), rng, Plain(rows)).go(8)
    assert "covariance_triangle" not in walk.names_asked


# signs that few rows have --------------------------------------------------------------------------


def test_no_signs_of_few_rows_are_flipped(tmp_path):
    """All combinations of a few signs occur over some runs, and their sums give the values."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(100, 4))
    rows[:, 0] = np.arange(100) < LEAST
    hospital = Hospital(tmp_path, rows, policy_of(min_count=LEAST))
    walk = hospital.walk(pca("covariance", "auto"), rng, Plain(rows)).go(
        12, prefer=("covariance_triangle", "column_squares", "draw_signs")
    )
    assert "column_squares" in walk.names_asked
    assert not walk.names_asked & set(SIGNED)


# what refusals tell -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["squares", "standardize", "covariance_triangle", "triangular_factor"]
)
def test_whether_a_site_refuses_does_not_depend_on_a_single_value(name, tmp_path):
    """Two tables with the same sums and products, of which one has the larger values."""
    four = np.array([[13.0, 2.0], [1.0, 10.0], [1.0, 6.0], [1.0, 2.0]])
    rows = np.tile(four, (5, 1))
    turned = np.tile(QUARTER_TURN @ four, (5, 1))
    sizes = [np.abs(table[:, 0]).max() for table in (rows, turned)]
    assert sizes[0] != sizes[1]
    far = np.array([np.sqrt(sizes[0] * sizes[1]), 1.0]) * MAX_TIMES_TYPICAL
    solvers = {"covariance_triangle": "covariance", "triangular_factor": "tsqr"}
    plan = pca(solvers.get(name, "lanczos"), scale=name == "squares")
    rules = policy_of(min_count=LEAST, allow=(*WORDS, "tsqr"), gather=True)
    refused = []
    for which, table in (("one", rows), ("other", turned)):
        hospital = Hospital(tmp_path / which, table, rules)
        walk = hospital.walk(plan, np.random.default_rng(0), Plain(table), given={"mean": far})
        for question in ("column_names", "count_and_sum", name):
            walk.ask(question)
        refused.append(walk.refusals)
    assert refused[0] == refused[1]


@pytest.mark.parametrize("missing", MODES)
def test_a_refusal_does_not_count_gaps(missing, tmp_path):
    rng = np.random.default_rng(0)
    refused = []
    for n in (1, 2):
        rows = rng.normal(size=(N, D))
        rows[:n, 0] = NAN
        hospital = Hospital(tmp_path / str(n), rows, policy_of(min_count=LEAST))
        walk = hospital.walk(pca(missing=missing), np.random.default_rng(0), Plain(rows)).go(4)
        refused.append(walk.refusals)
    assert refused[0] == refused[1] != []


def test_the_list_of_variants_tells_nothing_about_a_sample_that_came(tmp_path):
    """A variant that four samples have is left out, until the sample that came has it too."""
    rng = np.random.default_rng(0)
    samples = (rng.random((201, 300)) < rng.uniform(0.01, 0.06, 300)).astype(float)
    hospital = Hospital(tmp_path, samples[:200], policy_of(), kind=".bed")
    walk = hospital.walk(pca(missing="mean"), rng, Plain(samples))
    assert 0 < walk.ask("column_names")["n_features"] < 300
    hospital.write(samples)
    walk = hospital.walk(pca(missing="mean"), rng, Plain(samples))
    assert walk.ask("column_names") is None
    assert "min_change=5" in walk.refusals[0]
