"""The live page says where a run stands, to this machine alone, and never gets in its way."""

from __future__ import annotations

import http.client
import json
import socket
import threading

import numpy as np
import pytest

from command_line import ROWS, run
from fedpca import FederatedPCA, Federation
from fedpca.cli.live import harmless, watch
from fedpca.cli.progress import Watchers
from fedpca.errors import InputError
from fedpca.report import live
from fedpca.report.boards import Feed, RunBoard, ServerBoard
from fedpca.report.live import LivePage, parse_address
from processes import until

HANG_S = 600.0
PARTS = {"north": ROWS[:30], "south": ROWS[30:]}


@pytest.fixture
def board():
    return RunBoard("m.fedpca", "FederatedPCA, lanczos", 1e-10, 500)


@pytest.fixture
def page(board):
    served = LivePage(board.feed, "0")
    yield served
    served.close()


def port_of(page):
    return int(page.url.rstrip("/").rpartition(":")[2])


def answer(page, path="/", method="GET", host=None, **headers):
    """The status, headers, and body of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(page), timeout=HANG_S)
    given = {"Host": f"127.0.0.1:{port_of(page)}" if host is None else host}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=given)
    reply = connection.getresponse()
    body = reply.read() if path != "/events" or reply.status != 200 else b""
    connection.close()
    return reply.status, reply.headers, body.decode()


class Reader:
    """A reader of the stream of events."""

    def __init__(self, page):
        self._connection = http.client.HTTPConnection("127.0.0.1", port_of(page), timeout=HANG_S)
        self._connection.request("GET", "/events")
        self._reply = self._connection.getresponse()
        assert self._reply.status == 200

    def next(self):
        """The next state, or None at the end of the stream."""
        for line in iter(self._reply.readline, b""):
            if line.startswith(b"data: "):
                return json.loads(line.removeprefix(b"data: "))
        return None

    def close(self):
        self._reply.close()  # which holds the socket, too
        self._connection.close()


def entry(number, residual=None, question="covariance_product"):
    crossed = {"bytes_up": 2000, "bytes_down": 1000, "seconds": 2.0, "residual": residual}
    return {"round": number, "question": question, "sites": 2, **crossed}


def rows_of(state):
    return {name: (word, note) for name, word, _, note in state["sites"]["rows"]}


def state_of(board):
    return json.loads(board.feed.text())


def test_a_board_says_who_is_online_who_must_approve_and_who_is_lost(board):
    board.show_online(["north", "south", "west"], ["north", "south"])
    board.show_waiting("abc", ("north",))
    state = state_of(board)
    assert rows_of(state)["north"][0] == "must approve"
    assert rows_of(state)["west"][0] == "offline"
    assert state["sites"]["counts"] == "2 of 3 online"
    assert state["state"] == "Waiting for approval"
    assert "run abc" in state["what"]
    board.show_waiting("abc", ())
    asked = {"round": 1, "question": "covariance_product", "sites": ("north", "south")}
    board.show_answer({**asked, "site": None})
    board.show_answer({**asked, "site": "south"})
    assert rows_of(state_of(board))["north"][0] == "asked"
    assert rows_of(state_of(board))["south"][0] == "online"
    loss = {"site": "west", "round": 1, "question": "", "reason": "round 1: no answer\x1b[2J"}
    board.show_round(entry(1), [loss])
    assert rows_of(state_of(board))["west"] == ("lost", "round 1: no answer\\x1b[2J")
    assert next(iter(rows_of(state_of(board)))) == "west"  # which needs attention


def test_a_site_that_was_offline_is_not_called_online_at_the_end(board):
    board.show_online(["north", "south", "west"], ["north"])
    board.show_answer({"round": 1, "question": "covariance_product", "site": "south"})
    board.end("Done", is_good=True)
    state = state_of(board)
    assert {name: word for name, (word, _) in rows_of(state).items()} == {
        "west": "offline",
        "north": "online",
        "south": "online",
    }
    assert state["sites"]["counts"] == "2 of 3 online"


def test_a_board_says_when_the_end_is_expected(board):
    for number, residual in enumerate([None, 1e-1, 1e-2, 1e-3, 1e-4], start=1):
        board.show_round(entry(number, residual), [])
    state = state_of(board)
    facts = dict(state["facts"])
    assert facts["still to go"] == "about 6 rounds, 12 s"
    assert facts["from the sites"] == "10.0 kB"
    assert state["curve"]["end"] == 11
    assert state["curve"]["points"] == [[2, 0.1], [3, 0.01], [4, 0.001], [5, 0.0001]]
    assert state["bytes"] == [[1, *[[2000, 1000]] * 5]]
    board.end("Done", is_good=True)
    state = state_of(board)
    assert state["tone"] == "good"
    assert state["ended"] >= state["began"]
    assert state["curve"]["end"] is None


def test_a_board_of_many_sites_and_rounds_stays_small(board):
    names = [f"site-{i}" for i in range(5000)]
    board.show_online(names, names[:-1])
    for number in range(1, 3000):
        board.show_round(entry(number, 1.0 / number), [])
    state = state_of(board)
    assert rows_of(state)["site-4999"][0] == "offline"
    assert len(state["sites"]["rows"]) + state["sites"]["more"] == 5000
    assert len(board.feed.text()) < 40_000
    assert state["curve"]["points"][-1] == [2999, 1.0 / 2999]


def test_a_server_says_which_sites_are_in_a_run():
    board = ServerBoard("here", ["north", "south"])
    board.tell("north joined")
    board.show_sites({"north"}, {"north": "ann", "south": "ann"})
    state = state_of(board)
    assert rows_of(state) == {"south": ("offline in a run", "ann"), "north": ("in a run", "ann")}
    assert dict(state["facts"])["sites online"] == "1 of 2"
    assert state["lines"][0].endswith("north joined")
    version, _ = board.feed.wait(-1, 0)
    board.show_sites({"north"}, {"north": "ann", "south": "ann"})
    assert board.feed.wait(version, 0) == (version, False)  # nothing new
    board.show_sites({"north", "south"}, {})
    assert state_of(board)["state"] == "Running; no run uses the sites"


def test_readers_follow_a_run_and_its_end(board, page):
    readers = [Reader(page) for _ in range(5)]
    assert all(reader.next()["state"] == "Waiting for sites" for reader in readers)
    board.show_round(entry(1), [])
    assert all(dict(reader.next()["facts"])["round"] == "1" for reader in readers)
    board.end("Done: it is written", is_good=True)
    page.close()
    for reader in readers:
        assert reader.next()["state"] == "Done: it is written"
        assert reader.next() is None
        reader.close()


def test_the_page_and_its_script_are_what_the_browser_may_run(page):
    status, headers, text = answer(page)
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert headers["Cache-Control"] == "no-store"
    assert headers["Access-Control-Allow-Origin"] is None
    assert "innerHTML" not in text  # names become text, never markup


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8642", "", "127.0.0.1.evil.example", "a@127.0.0.1", "[::1"],
)
def test_a_name_that_was_not_given_is_refused(host, page):
    for path in ("/", "/events"):
        status, _, text = answer(page, path, host=host)
        assert (status, "--page-at NAME:PORT" in text) == (421, True)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9999", "127.0.0.1", "[::1]:80", "10.1.2.3"]
)
def test_addresses_and_this_machine_are_no_strangers(host, page):
    assert answer(page, host=host)[0] == 200


def test_other_pages_cannot_read_the_stream(page):
    assert answer(page, "/events", Origin="http://evil.example")[0] == 403
    assert answer(page, "/events", Sec_Fetch_Site="cross-site")[0] == 403
    assert answer(page, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    link = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert answer(page, "/", Sec_Fetch_Site="cross-site", **link)[0] == 200
    frame = {**link, "Sec_Fetch_Dest": "iframe"}
    assert answer(page, "/", Sec_Fetch_Site="cross-site", **frame)[0] == 403
    assert answer(page, "/events", Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_nothing_but_get_is_answered(method, page):
    status, headers, _ = answer(page, method=method)
    assert (status, headers["Allow"]) == (405, "GET")


def test_there_is_only_one_page(page):
    for path in ("/../etc/passwd", "/x", "/events/", "/?x"):
        assert answer(page, path)[0] == 404


def test_a_port_in_use_is_named_with_the_way_out(page):
    with pytest.raises(
        InputError, match=rf"port {port_of(page)} at 127\.0\.0\.1 is in use.*--page-at"
    ):
        LivePage(Feed(dict), str(port_of(page)))
    with pytest.raises(InputError, match=r"cannot show a page at nowhere\.invalid"):
        LivePage(Feed(dict), "nowhere.invalid:0")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", ("127.0.0.1", 8642)),
        ("9000", ("127.0.0.1", 9000)),
        ("here.example", ("here.example", 8642)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:99", ("::1", 99)),
        ("[::1]", ("::1", 8642)),
        ("::1", ("::1", 8642)),
    ],
)
def test_addresses_are_read_as_people_type_them(text, where):
    assert parse_address(text) == where


@pytest.mark.parametrize("text", ["70000", "here:port", "here:-1", "1.2.3.4:99999"])
def test_a_port_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="from 0 to 65535"):
        parse_address(text)


def test_a_page_for_others_says_so():
    served = LivePage(Feed(dict), "0.0.0.0:0")
    assert served.is_for_others
    assert served.url.startswith("http://127.0.0.1:")
    served.close()


def stream_from(page, source, here="127.0.0.1"):
    """A stream of events to an address of this machine that stands for another machine."""
    connection = socket.create_connection(
        (here, port_of(page)), timeout=HANG_S, source_address=(source, 0)
    )
    connection.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.0 200"
    return connection


def is_ended(connection):
    """Read what is left without waiting for more, and return whether the server ended the stream."""
    connection.settimeout(0.1)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.fixture
def strangers(monkeypatch):
    """Let only 127.0.0.1 count as this machine, so that its other addresses are strangers."""

    class Other:
        def __init__(self, host):
            self.is_loopback = host == "127.0.0.1"

    monkeypatch.setattr(live, "address_of", Other)


def test_the_oldest_stream_makes_room_so_that_a_new_one_is_always_served(board, page, monkeypatch):
    monkeypatch.setattr(live, "MAX_READERS", 3)
    streams = [Reader(page) for _ in range(4)]
    assert answer(page)[0] == 200  # and ends another
    board.show_round(entry(1), [])
    for stream in streams[2:]:
        while not stream.next()["bytes"]:
            pass
    for stream in streams[:2]:
        while stream.next() is not None:
            pass
    for stream in streams:
        stream.close()


def test_strangers_cut_off_each_other_and_never_the_owner(page, monkeypatch, strangers):
    monkeypatch.setattr(live, "MAX_READERS", 4)
    monkeypatch.setattr(live, "MAX_FROM_ONE", 2)
    own = [stream_from(page, "127.0.0.1") for _ in range(3)]
    other = stream_from(page, "127.0.0.9")
    greedy = [stream_from(page, "127.0.0.2") for _ in range(40)]  # reconnects as fast as it can
    assert [is_ended(each) for each in greedy[-3:]] == [True, False, False]
    assert not is_ended(other)
    many = [stream_from(page, f"127.0.1.{i}") for i in range(1, 20)]
    assert sum(not is_ended(each) for each in many) >= 2
    assert not any(is_ended(each) for each in own)
    assert answer(page)[0] == 200
    for each in (*own, other, *greedy, *many):
        each.close()


def test_a_stream_that_made_room_leaves_no_thread_behind(board, page, monkeypatch):
    monkeypatch.setattr(live, "MAX_READERS", 2)
    before = threading.active_count()
    streams = [Reader(page) for _ in range(30)]
    until(lambda: threading.active_count() <= before + 2, "the ended streams' threads")
    for stream in streams:
        stream.close()


def test_a_reader_that_never_reads_does_not_hold_up_the_run(board, page):
    silent = socket.create_connection(("127.0.0.1", port_of(page)))
    silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    silent.sendall(f"GET /events HTTP/1.0\r\nHost: 127.0.0.1:{port_of(page)}\r\n\r\n".encode())
    board.show_online([f"site-{i}" * 20 for i in range(5000)], [])
    for number in range(1, 2000):  # each would wait for the reader if any did
        board.show_round(entry(number), [])
    board.end("Done", is_good=True)
    silent.close()


@pytest.mark.parametrize("is_open", [True, False])
def test_a_fit_is_the_same_with_and_without_readers(is_open):
    board = RunBoard("m", "x", 1e-10, 500)
    fed = Federation.local(PARTS)
    watch(fed, Watchers(), board)
    if is_open:
        page = LivePage(board.feed, "0")
        seen, reader = [], Reader(page)
        thread = threading.Thread(target=lambda: seen.extend(iter(reader.next, None)))
        thread.start()
    model = FederatedPCA(3, solver="lanczos", random_state=0).fit(fed)
    alone = FederatedPCA(3, solver="lanczos", random_state=0).fit(PARTS)
    np.testing.assert_array_equal(model.components_, alone.components_)
    board.end("Done", is_good=True)
    if is_open:
        page.close()
        thread.join(HANG_S)
        assert dict(seen[-1]["facts"])["round"] == str(model.run_.rounds)
        reader.close()
    crossed = state_of(board)["bytes"][0][1:]
    assert np.sum(crossed) == model.run_.bytes_up + model.run_.bytes_down


def test_an_error_of_the_page_does_not_end_a_fit(caplog):
    fed = Federation.local(PARTS)
    broken = RunBoard("m", "x", 1e-10, 500)
    broken.feed = None  # so that nothing can change
    watch(fed, Watchers(), broken)
    FederatedPCA(2).fit(fed)
    assert caplog.text.count("the page can no longer be updated") == 2  # at rounds, and at answers


def test_what_is_harmless_is_called_until_it_fails(caplog):
    seen = []
    show = harmless(lambda x: seen.append(1 / x))
    for x in (1, 0, 1):
        show(x)
    assert seen == [1.0]


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_shell_refuses_a_port_in_use_before_anything_is_asked(taken, tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    more = ["-o", tmp_path / "m.fedpca", "--journal", tmp_path / "j", "--page-at", taken]
    done = run("fit", tmp_path / "x.npy", "-k", 2, *more)
    assert done.exit_code == 2
    assert f"port {taken} at 127.0.0.1 is in use" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy"]


def test_the_shell_says_where_the_page_is(tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    fit = ["fit", tmp_path / "x.npy", "-k", 2, "--page-at", "0"]
    done = run(*fit, "-o", tmp_path / "m.fedpca")
    assert done.exit_code == 0
    assert "follow this at http://127.0.0.1:" in done.stderr
    quiet = run(*fit, "-o", tmp_path / "n.fedpca", "-q")
    assert quiet.stderr == ""
