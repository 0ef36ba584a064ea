"""A site answers so many runs and rounds a day, and neither a restart nor a clock makes it forget."""

from __future__ import annotations

import stat

import numpy as np
import pytest

from fedpca import FederatedPCA, Federation, Policy, Site
from fedpca.errors import InputError, PolicyRefused
from fedpca.protocol.message import compose, decode, encode
from fedpca.site.daily_limits import DAY_MINUTES, SET_ASIDE, Budget
from fedpca.site.store import BUDGET, Kept

RUNS, ROUNDS = "max_runs_per_day", "max_rounds_per_day"
ROWS = np.random.default_rng(0).normal(size=(2, 30, 4))


class Clock:
    """A clock that the test sets, in minutes."""

    def __init__(self):
        self.minute = 1_000_000

    def __call__(self):
        return 60.0 * self.minute


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "north.budget"


def started(policy, path, clock):
    """The budget of a site that was just started."""
    return Budget(policy, Kept(BUDGET, lambda: path), clock)


def spend(budget, run="a", rounds=1):
    """The number of rounds that were granted before the budget was spent."""
    for done in range(rounds):
        try:
            budget.spend(run)
        except PolicyRefused as refused:
            return done, str(refused)
    return rounds, ""


def test_runs_are_counted_over_24_hours(clock, path):
    budget = started(Policy(**{RUNS: 3}), path, clock)
    for run in ("a", "b", "c"):
        assert spend(budget, run, 70) == (70, "")
        clock.minute += 60
    assert (
        "answered 3 runs in 24 hours, which is the limit that its policy's max_runs_per_day"
        in (spend(budget, "d")[1])
    )
    assert spend(budget, "c", 70) == (70, "")  # a run that has begun goes on
    clock.minute += DAY_MINUTES - 180
    assert spend(budget, "d") == (1, "")
    assert "3 runs" in spend(budget, "e")[1]


@pytest.mark.parametrize("limit", [0, 1, SET_ASIDE - 1, SET_ASIDE, SET_ASIDE + 1, 3 * SET_ASIDE])
def test_exactly_as_many_rounds_are_answered_as_the_policy_allows(clock, path, limit):
    budget = started(Policy(**{ROUNDS: limit}), path, clock)
    done, said = spend(budget, "a", limit + 5)
    assert done == limit
    assert "max_rounds_per_day" in said
    clock.minute += DAY_MINUTES + 1
    assert spend(budget, "a", limit + 5)[0] == limit


def test_rounds_that_were_set_aside_for_one_run_are_the_next_ones_too(clock, path):
    budget = started(Policy(**{ROUNDS: 100}), path, clock)
    granted = 0
    for run in range(200):
        granted += spend(budget, str(run))[0]
        clock.minute += 1
    assert granted == 100


def test_a_restart_does_not_give_a_budget_back(clock, path):
    policy = Policy(**{RUNS: 3, ROUNDS: 500})
    for run in ("a", "b", "c"):
        assert spend(started(policy, path, clock), run)[0] == 1
    assert "3 runs" in spend(started(policy, path, clock), "d")[1]
    assert spend(started(policy, path, clock), "c")[0] == 1  # the same run goes on
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    total = sum(spend(started(policy, path, clock), "c", 20)[0] for _ in range(100))
    assert total <= 500


def test_a_clock_that_is_set_back_does_not_give_a_budget_back(clock, path):
    policy = Policy(**{RUNS: 2})
    budget = started(policy, path, clock)
    assert spend(budget, "a")[0] == spend(budget, "b")[0] == 1
    clock.minute -= 10 * DAY_MINUTES
    for run in ("c", "d", "e"):
        assert "2 runs" in spend(budget, run)[1]
        assert "2 runs" in spend(started(policy, path, clock), run)[1]
    clock.minute += 11 * DAY_MINUTES
    assert spend(started(policy, path, clock), "c")[0] == 1


def test_runs_under_a_clock_that_was_set_back_count_when_it_is_right_again(clock, path):
    policy = Policy(**{RUNS: 2})
    assert spend(started(policy, path, clock), "a")[0] == 1
    clock.minute -= 10 * DAY_MINUTES
    assert spend(started(policy, path, clock), "b")[0] == 1
    clock.minute += 10 * DAY_MINUTES
    assert "2 runs" in spend(started(policy, path, clock), "c")[1]


@pytest.mark.parametrize(
    "header",
    [
        None,
        {},
        {"latest": 1, "run": "a"},
        {"latest": "1", "run": "a", "counted": {}},
        {"latest": 1, "run": "a", "counted": []},
        {"latest": 1, "run": "a", "counted": {"1": [1]}},
        {"latest": 1, "run": "a", "counted": {"1": [1, 1.5]}},
    ],
)
def test_a_damaged_budget_is_refused(clock, path, header):
    path.parent.mkdir()
    path.write_bytes(b"" if header is None else encode(compose(header, {})))
    with pytest.raises(
        InputError, match=r"north\.budget, the site's count of runs and rounds, is damaged"
    ):
        started(Policy(**{RUNS: 3}), path, clock).spend("a")


def test_a_fit_stops_when_the_budget_of_a_site_is_spent(tmp_path):
    def fit(limits):
        policy = Policy(**limits)
        sites = [
            Site(ROWS[0], name="north", policy=policy, store=tmp_path),
            Site(ROWS[1], name="s"),
        ]
        return FederatedPCA(2, random_state=0).fit(Federation.local(sites)).run_

    rounds = fit({RUNS: 3}).rounds
    assert fit({RUNS: 3}).rounds == rounds
    fit({RUNS: 3})
    with pytest.raises(PolicyRefused, match=r"site 'north'.*max_runs_per_day"):
        fit({RUNS: 3})
    for file in tmp_path.glob("*.budget"):
        counted = decode(file.read_bytes()).header["counted"]
        assert sum(runs for runs, _ in counted.values()) == 3
        file.unlink()
    with pytest.raises(PolicyRefused, match=r"site 'north'.*max_rounds_per_day"):
        fit({ROUNDS: rounds - 2})
