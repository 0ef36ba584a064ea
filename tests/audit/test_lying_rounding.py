"""Without the grid, the rounding of single rows gives them away; with it, it tells nothing.

That it tells nothing is tested in test_lying.py for every policy. Here, the grid or a rule is taken
away.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpca import Site
from fedpca.audit.liar import Liar, Refused, score
from fedpca.audit.lying import ATTACKS, attack_site
from fedpca.site.policy import JOINING

N, D = 60, 8
AUTO = replace(JOINING, allow=("federated", "auto"))


def three_sites():
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=(N, D)) * np.arange(1, D + 1) + np.linspace(-20, 100, D)
        for name in ("north", "east", "south")
    }


@pytest.fixture
def no_grid(monkeypatch):
    """Make steps so small that they change no number."""
    monkeypatch.setattr("fedpca.linalg.grid.SHARE", 2.0**-400)


def values_found(rows, policy):
    """How many values the attack reads from one site's answers or from totals over several."""
    sites = {name: Site(each, name=name, policy=policy) for name, each in rows.items()}
    attack = ATTACKS["rounding"]
    liar = Liar({name: site.answer_bytes for name, site in sites.items()}, three_sites())
    liar.begin(**attack.plans[0])
    return score(attack.run(liar), np.vstack(list(rows.values()))).values, liar.refusals


@pytest.mark.slow
@pytest.mark.usefixtures("no_grid")
def test_without_the_grid_one_site_gives_away_all_values_under_the_policy():
    rows = {"north": three_sites()["north"]}
    assert values_found(rows, AUTO) == (N * D, [])


@pytest.mark.slow
@pytest.mark.usefixtures("no_grid")
def test_without_the_grid_totals_give_values_away_as_long_as_the_budget_lasts():
    found, refusals = values_found(three_sites(), replace(AUTO, max_runs_per_day=60))
    assert found >= N
    assert "max_runs_per_day" in refusals[0]


@pytest.mark.usefixtures("no_grid")
@pytest.mark.parametrize("attack", ["far mean", "constant columns"])
def test_without_the_grid_a_site_that_multiplies_its_rows_gives_them_away(attack):
    assert attack_site(three_sites(), attacks=[attack]).of(attack, "open").records == N


@pytest.mark.parametrize("attack", ["far mean", "far mean, totals"])
def test_with_the_grid_products_tell_nothing_even_about_a_far_mean(attack):
    outcome = attack_site(three_sites(), policy={"auto": AUTO}, attacks=[attack])
    for policy in ("open", "default", "auto"):
        found = outcome.of(attack, policy)
        assert found.questions > 100
        assert not found.has_found


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_factor_about_a_far_mean_would_have_directions_made_of_rounding(is_checked, monkeypatch):
    """Entries that are no sums of squares or products have no grid; so far means are refused."""
    if not is_checked:
        monkeypatch.setattr("fedpca.solvers.standardize.MAX_TIMES_TYPICAL", np.inf)
    rows = three_sites()["north"]
    policy = replace(JOINING, allow=("tsqr",), gather=True)
    site = Site(rows, name="north", policy=policy)
    liar = Liar({"north": site.answer_bytes}, ["east", "south"])
    liar.begin(**ATTACKS["gathered as a sum"].plans[0])
    liar.ask_one("column_names")
    liar.ask("count_and_sum", features=np.empty(0, np.uint8), missing=np.int64(0))
    mean = rows.mean(axis=0)
    mean[:2] = 2.0**60  # both columns are constant there, up to rounding
    if is_checked:
        with pytest.raises(Refused, match="field 'mean' is more than"):
            liar.ask("triangular_factor", mean=mean, scale=np.ones(D))
        return
    answer = liar.ask("triangular_factor", mean=mean, scale=np.ones(D))
    second = answer["entries"][D : 2 * D - 1]
    assert abs(second[0]) <= 2.0**-40 * mean[0]
    assert np.abs(second[1:]).max() > 1


def test_a_table_with_few_columns_gives_the_attack_nothing_to_read():
    found = attack_site([np.random.default_rng(1).normal(size=(N, 4))], attacks=["rounding"])
    assert not found.of("rounding", "open").has_found
