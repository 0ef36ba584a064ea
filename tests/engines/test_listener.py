"""Connections are counted from the moment they are accepted until they are closed."""

from __future__ import annotations

import gc
import resource
import socket
from contextlib import ExitStack

import pytest

from fedpca.engines.addresses import network_of, origin_of
from fedpca.engines.flower import listener
from fedpca.engines.flower.listener import Listener
from fedpca.errors import LinkError
from processes import HANG_S


@pytest.fixture
def small(monkeypatch):
    """A listener for one site: three strangers from a network, nine in total, and three with keys."""
    monkeypatch.setattr(listener, "CONNECTIONS_FOR_FITS", 2)
    monkeypatch.setattr(listener, "CONNECTIONS_PER_SITE", 1)
    told = []
    made = Listener("0.0.0.0", 0, 1, told.append)
    made.told = told
    for own in made.sockets:
        own.listen()
    with ExitStack() as made.at_end:
        yield made
    for own in made.sockets:
        own.close()


def call(small, source="127.0.0.1"):
    """Connect, and return both ends."""
    (own,) = small.sockets
    port = own.getsockname()[1]
    caller = socket.create_connection(("127.0.0.1", port), HANG_S, source_address=(source, 0))
    served = own.accept()[0]
    small.at_end.callback(served.close)
    small.at_end.callback(caller.close)
    return caller, served


def know(small, pair):
    small.know(pair[0].getsockname()[:2])


def is_ended(pair):
    pair[0].settimeout(0.0)
    try:
        return pair[0].recv(1) == b""
    except BlockingIOError:
        return False


def test_the_oldest_stranger_of_a_network_makes_room_and_ended_ones_are_not_counted(small):
    pairs = [call(small, f"127.0.1.{i}") for i in range(1, 5)]
    assert [is_ended(pair) for pair in pairs] == [True, False, False, False]
    (line,) = small.told
    assert line.startswith("ended a connection that has shown no key because 127.0.1.0/24 has 3 ")
    pairs[1][1].close()
    pairs[1][1].close()  # counts once
    pairs.append(call(small, "127.0.1.9"))
    assert not is_ended(pairs[2])
    pairs.append(call(small, "127.0.1.1"))
    assert is_ended(pairs[2])
    assert len(small.told) == 1  # at most one line a minute
    for caller, served in pairs:
        caller.close()
        served.close()
    assert not small._seats
    assert not small._strangers
    assert (small._n_known, small._n_strangers) == (0, 0)


def test_strangers_from_many_networks_leave_places_for_those_who_have_shown_a_key(small):
    known = [call(small, "127.0.5.1") for _ in range(3)]
    for pair in known:
        know(small, pair)
        know(small, pair)  # counts once
    strangers = [call(small, f"127.0.{i % 7 + 1}.1") for i in range(40)]
    assert sum(not is_ended(pair) for pair in strangers) == small.most - small.most_from_one
    assert not any(is_ended(pair) for pair in known)
    late = call(small, "127.0.5.1")  # an honest site that comes in the middle of it
    assert not is_ended(late)
    known[0][1].close()
    know(small, late)
    strangers += [call(small, f"127.0.{i % 7 + 1}.2") for i in range(40)]
    assert not any(is_ended(pair) for pair in [late, *known[1:]])


def test_a_network_with_many_connections_makes_room_before_others(small):
    lone = call(small, "127.0.9.1")
    for network in (1, 2, 3, 4):
        flood = [call(small, f"127.0.{network}.{i}") for i in range(1, 4)]
    assert not is_ended(lone)
    assert not is_ended(flood[-1])


def test_no_more_connections_with_keys_than_their_places_are_spared(small):
    pairs = [call(small, f"127.0.{i}.1") for i in range(1, 5)]
    for pair in pairs:
        know(small, pair)
    assert (small._n_known, small._n_strangers) == (3, 1)
    small.know(("127.0.0.1", 1))  # a caller that is gone


def test_an_answer_does_not_wait_for_the_confirmation_of_its_first_part(small):
    caller, served = call(small)
    assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    caller.close()
    served.close()


def test_a_connection_that_nobody_closed_is_not_counted_for_ever(small):
    (own,) = small.sockets
    caller = socket.create_connection(("127.0.0.1", own.getsockname()[1]), HANG_S)
    number, address = own._accept()
    served = listener._Connection(own.family, own.type, own.proto, fileno=number)
    small.admit(served, address)
    assert small._n_strangers == 1
    with pytest.warns(ResourceWarning):  # noqa: PT031
        del served
        gc.collect()
    assert not small._seats
    assert small._n_strangers == 0
    caller.close()


@pytest.mark.parametrize(
    ("host", "origin", "network"),
    [
        ("10.0.0.7", "10.0.0.7", "10.0.0.0/24"),
        ("::ffff:10.0.0.7", "10.0.0.7", "10.0.0.0/24"),
        ("2001:db8::1:2:3:4", "2001:db8::/64", "2001:db8::/48"),
        ("2001:db8:0:7:9::1", "2001:db8:0:7::/64", "2001:db8::/48"),
        ("fe80::1%eth0", "fe80::/64", "fe80::/48"),
    ],
)
def test_one_caller_is_one_address_and_one_organization_is_one_network(host, origin, network):
    assert origin_of(host) == origin
    assert network_of(host) == network


def test_there_are_fewer_connections_than_open_files(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (200, 300))
    asked = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append(limits))
    made = Listener("127.0.0.1", 0, 1000, print)
    for own in made.sockets:
        own.close()
    assert asked == [(300, 300)]
    assert made.most == 300 - listener.OTHER_FILES
    assert made.most_from_one == made.most // 2


def test_a_port_in_use_is_named(small):
    port = small.sockets[0].getsockname()[1]
    with pytest.raises(
        LinkError, match=f"cannot listen on 127.0.0.1, port {port}: Address already"
    ):
        Listener("127.0.0.1", port, 1, print)
    with pytest.raises(LinkError, match=r"cannot listen on nowhere\.invalid, port 1: "):
        Listener("nowhere.invalid", 1, 1, print)
