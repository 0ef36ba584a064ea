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
from fedpca.linalg.grid import SHARE, rounded_up
from fedpca.site.policy import JOINING
from fedpca.solvers import sign_flips

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


def test_without_secret_points_between_steps_they_tell_a_value_in_spite_of_the_grid(monkeypatch):
    attack, rows = ATTACKS["bisected rounding"], three_sites()["north"]
    found = []
    for shares in (sign_flips.secret_shares, lambda _, shape, *about: np.zeros(shape)):
        monkeypatch.setattr(sign_flips, "secret_shares", shares)
        liar = Liar({"north": Site(rows, name="north", policy=AUTO).answer_bytes}, three_sites())
        liar.begin(**attack.plans[0])
        found.append(score(attack.run(liar), rows).values)
        assert not liar.refusals
    assert found == [0, 1]


def products_of_rows(rows, seeds):
    """The products of a site's rows with a direction, about means that differ a little."""
    d = rows.shape[1]
    policy = replace(JOINING, max_runs_per_day=None)
    site = Site(rows, name="north", policy=policy, memory_limit=0)  # as if A'A did not fit
    liar = Liar({"north": site.answer_bytes}, ["east"])
    for seed in seeds:
        liar.begin(**ATTACKS["out of turn"].plans[0])
        liar.ask_one("column_names")
        liar.ask("count_and_sum", features=np.empty(0, np.uint8), missing=np.int64(0))
        mean = rows.mean(axis=0) + 2.0**-40 * seed
        liar.ask("standardize", mean=mean, scale=np.ones(d), n_products=np.int64(1))
        yield mean, liar.ask("covariance_product", Z=np.eye(d, 1))["Y"][:, 0]


def test_where_a_product_with_a_direction_is_rounded_cannot_be_told():
    rows = three_sites()["north"]
    distances = []
    for mean, product in products_of_rows(rows, range(60)):
        A = rows - mean
        norms = rounded_up(np.sqrt(np.square(A).sum(axis=0)))
        distances.append((product - A.T @ A[:, 0]) / (SHARE * norms * norms[0]))
    size = np.abs(distances)
    assert (size < 1.5).all()  # half a step, half a step that is secret, and a few roundings
    assert 0.02 < (size > 0.6).mean() < 0.6


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
