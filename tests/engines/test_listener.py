"""Connections are counted from the moment they are accepted until they are closed."""

from __future__ import annotations

import gc
import resource
import socket

import pytest

from fedpca.engines.flower import listener
from fedpca.engines.flower.listener import Listener
from fedpca.errors import LinkError
from processes import HANG_S


@pytest.fixture
def small(monkeypatch):
    """A listener for one site that admits three connections from an address, and four in total."""
    monkeypatch.setattr(listener, "CONNECTIONS_FOR_FITS", 2)
    monkeypatch.setattr(listener, "CONNECTIONS_PER_SITE", 1)
    told = []
    made = Listener("127.0.0.1", 0, 1, told.append)
    made.told = told
    for own in made.sockets:
        own.listen()
    yield made
    for own in made.sockets:
        own.close()


def call(small):
    """Connect, and return both ends; the server's is None if the connection was refused."""
    (own,) = small.sockets
    caller = socket.create_connection(own.getsockname(), timeout=HANG_S)
    try:
        return caller, own.accept()[0]
    except ConnectionAbortedError:
        return caller, None


def test_an_address_has_as_many_connections_as_it_may_and_room_again_when_one_ends(small):
    pairs = [call(small) for _ in range(4)]
    assert [served is not None for _, served in pairs] == [True, True, True, False]
    assert pairs[3][0].recv(1) == b""
    assert small.told == [
        "refused a connection because 127.0.0.1 has 3 connections, which is the limit for one address"
    ]
    pairs[0][1].close()
    pairs[0][1].close()  # counts once
    pairs += [call(small), call(small)]
    assert [served is not None for _, served in pairs[4:]] == [True, False]
    assert len(small.told) == 1  # at most one line a minute
    for caller, served in pairs:
        caller.close()
        if served is not None:
            served.close()
    assert not small._open


def test_an_answer_does_not_wait_for_the_confirmation_of_its_first_part(small):
    caller, served = call(small)
    assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    caller.close()
    served.close()


def test_there_are_as_many_connections_in_total_as_there_may_be(small):
    small.most = 2
    pairs = [call(small) for _ in range(3)]
    assert [served is not None for _, served in pairs] == [True, True, False]
    assert small.told == [
        "refused a connection because there are 2 connections, which is the limit"
    ]
    for caller, served in pairs:
        caller.close()
        if served is not None:
            served.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_connection_that_nobody_closed_is_not_counted_for_ever(small):
    caller, served = call(small)
    assert small._open.total() == 1
    del served
    gc.collect()
    assert not small._open
    caller.close()


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("2001:db8:0:0:9::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_one_caller_is_one_address_or_one_network(host, origin):
    assert listener._origin(host) == origin


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
