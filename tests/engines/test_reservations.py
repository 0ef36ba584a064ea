"""Sites are reserved for one run at a time, and free again when it ends or its process is gone."""

from __future__ import annotations

import getpass

import pytest

from fedpca.engines.flower import reservations
from fedpca.engines.flower.reservations import RESERVATION_S, Reservations


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_site_is_reserved_for_one_run(clock):
    reservations = Reservations(clock)
    assert reservations.take("first", ["north", "south"], "alice") is None
    in_the_way = reservations.take("second", ["south", "west"], "bob")
    assert (in_the_way.holder, in_the_way.sites) == ("alice", ("north", "south"))
    assert reservations.take("third", ["west"], "carol") is None  # the second one took nothing


def test_a_run_that_ends_gives_its_sites_back_and_no_others(clock):
    reservations = Reservations(clock)
    reservations.take("first", ["north"], "alice")
    reservations.take("second", ["south"], "bob")
    reservations.take("first", [], "alice")
    assert reservations.take("third", ["north"], "carol") is None
    assert reservations.take("third", ["north", "south"], "carol").holder == "bob"


def test_a_reservation_lasts_while_it_is_renewed(clock):
    reservations = Reservations(clock)
    for _ in range(5):
        assert reservations.take("first", ["north"], "alice") is None
        clock.now += 0.9 * RESERVATION_S
        assert reservations.take("second", ["north"], "bob").holder == "alice"
    clock.now += 0.2 * RESERVATION_S
    assert reservations.take("second", ["north"], "bob") is None
    assert reservations.take("first", ["north"], "alice").holder == "bob"


def test_a_run_that_is_resumed_keeps_its_reservation(clock):
    reservations = Reservations(clock)
    reservations.take("first", ["north"], "alice, process 1")
    assert reservations.take("first", ["north"], "alice, process 2") is None
    assert reservations.take("second", ["north"], "bob").holder == "alice, process 2"


def test_a_user_without_a_name_reserves_sites_too(monkeypatch):
    def nobody():
        raise KeyError("uid not found: 1000")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert reservations._who().startswith("an unnamed user on ")
