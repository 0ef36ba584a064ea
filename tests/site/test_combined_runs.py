"""What a lying coordinator would combine from several runs about the same rows, or nearly the same."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca import Policy, Site
from fedpca.audit.liar import Found, Liar, Refused, score
from fedpca.linalg.dense import unpack_triangle
from fedpca.rows.gaps import MISSING
from fedpca.site.policy import JOINING
from fedpca.solvers.common_features import names_to_bytes

N, D = 60, 6
NAN = float("nan")
NO_RULES = Policy(min_count=1, min_rows_per_direction=0)


def rows_of(n=N, d=D, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def crossing_gaps(rows):
    """Seven rows lack column 0, seven lack column 1, and one of them lacks both."""
    rows[:7, 0] = rows[6:13, 1] = NAN
    return rows


def gaps_in_three(rows):
    """All rows that lack column 0 or 1 lack column 2 too, and one of them lacks all three."""
    rows[:7, 0] = rows[6:13, 1] = rows[:13, 2] = NAN
    return rows


def liar_for(site):
    return Liar({site.name: site.answer_bytes}, ["east", "south"])


def begin(liar, missing="error", solver="covariance"):
    """Begin a run and ask its first questions."""
    liar.begin("FederatedPCA", solver=solver, n_components=2, missing=missing)
    liar.ask_one("column_names")
    position = np.int64(MISSING.index(missing))
    return liar.ask("count_and_sum", features=names_to_bytes(None), missing=position)


def products(liar, mean):
    answer = liar.ask("covariance_triangle", mean=mean, scale=np.ones(len(mean)))
    return unpack_triangle(answer["triangle"])


def sums_where_present(liar, columns):
    """Return the sums of all columns, and those over the rows that have each of these columns.

    The mean of the columns is moved by 1 in a second run, so their products with another column fall by
    that column's sum about its mean, over the rows that have both.
    """
    told = begin(liar, "mean")
    mean = told["total"] / told["present"]
    first = products(liar, mean)
    begin(liar, "mean")
    moved = mean.copy()
    moved[columns] += 1
    second = products(liar, moved)
    others = np.setdiff1d(np.arange(len(mean)), columns)
    found = np.zeros((len(columns), len(mean)))
    for i, k in enumerate(columns):
        found[i, others] = (first - second)[k, others] + mean[others] * told["present"][k]
    return told["total"], found


def cross(liar):
    total, (a, b) = sums_where_present(liar, [0, 1])
    whole = begin(liar, "drop")["total"]
    return Found((total - a - b + whole)[None])


def cross_three(liar):
    total, (a, b, c) = sums_where_present(liar, [0, 1, 2])
    # each row that lacks column 2 lacks column 0 or 1; the row that lacks all three counts twice
    return Found(((total - a) + (total - b) - (total - c))[None])


def with_zeros(found, columns):
    """Return what was found in columns without gaps; the row's gaps match anything."""
    found.records[:, columns] = 0
    return found


@pytest.mark.parametrize(
    ("plant", "attack", "columns"),
    [(crossing_gaps, cross, [0, 1]), (gaps_in_three, cross_three, [0, 1, 2])],
)
def test_a_row_where_gaps_cross_stays_hidden(plant, attack, columns):
    rows = plant(rows_of())
    open_site = Site(rows, name="north", policy=NO_RULES)
    assert score(with_zeros(attack(liar_for(open_site)), columns), rows).records == 1
    with pytest.raises(Refused, match=r"in columns 0, 1.*gaps are in such rows.*min_count=5"):
        attack(liar_for(Site(rows, name="north", policy=JOINING)))


def test_one_way_to_treat_gaps_does_not_make_the_other_possible():
    liar = liar_for(Site(crossing_gaps(rows_of()), name="north", policy=JOINING))
    for missing in ("drop", "mean"):
        with pytest.raises(Refused, match="gaps are in such rows"):
            begin(liar, missing)


class Changing:
    """A site with a folder, whose file changes between runs."""

    def __init__(self, folder, policy):
        self._path = folder / "rows.csv"
        self.write(rows_of()[:50])
        self.site = Site(self._path, name="north", policy=policy, store=folder / "store")
        self.liar = liar_for(self.site)

    def write(self, rows):
        np.savetxt(self._path, rows, "%.17g", ",", header="a,b,c,d,e,f", comments="")


def gapped(rows):
    rows = rows.copy()
    rows[:8, 0] = NAN
    return rows


def hidden_between_kinds(changing):
    """Compare rows without gaps, in a run that fills gaps, with those in a run that drops rows."""
    rows = rows_of()
    changing.write(gapped(rows[:50]))
    _, (before,) = sums_where_present(changing.liar, [0])
    changing.write(gapped(rows[:51]))
    after = begin(changing.liar, "drop")["total"]
    return Found((after - before)[None])


def hidden_among_gaps(changing):
    """Add one row without gaps together with seven that have gaps."""
    rows = rows_of()
    changing.write(gapped(rows[:50]))
    _, (before,) = sums_where_present(changing.liar, [0])
    more = rows[:58].copy()
    more[51:, 0] = NAN
    changing.write(gapped(more))
    _, (after,) = sums_where_present(changing.liar, [0])
    return Found((after - before)[None])


@pytest.mark.parametrize("attack", [hidden_between_kinds, hidden_among_gaps])
def test_a_row_that_was_added_is_not_hidden_by_what_happens_to_gaps(attack, tmp_path):
    for name in ("open", "joining"):
        (tmp_path / name).mkdir()
    found = attack(Changing(tmp_path / "open", NO_RULES))
    record = rows_of()[50:51]
    found.records[:, 0] = record[:, 0]  # sums over rows that have this column do not show it
    assert score(found, record).records == 1
    with pytest.raises(Refused, match="min_change=5"):
        attack(Changing(tmp_path / "joining", JOINING))


def test_rows_with_gaps_may_come_in_numbers_that_hide_each_of_them(tmp_path):
    changing = Changing(tmp_path, JOINING)
    rows = rows_of(90)
    changing.write(gapped(rows[:50]))
    begin(changing.liar, "mean")
    more = rows.copy()
    more[60:70, 0] = NAN  # ten new rows with gaps, and thirty without
    changing.write(gapped(more))
    assert begin(changing.liar, "mean")["n"] == 90
    fewer = more[:84]  # six of the rows without gaps are gone
    changing.write(gapped(fewer))
    assert begin(changing.liar, "drop")["n"] == 84 - 18
