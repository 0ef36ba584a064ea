"""Who asks for messages is held until there is one, and is let go in time."""

from __future__ import annotations

import asyncio

import pytest

from fedpca.engines.flower.mailbox import Mailbox
from processes import HANG_S

DIRECTIONS = {
    "questions": ("/v1/runtime/push-messages", "/v1/fleet/pull-messages"),
    "answers": ("/v1/fleet/push-messages", "/v1/runtime/pull-messages"),
}


class Server:
    """What stands behind the mailbox: it keeps what is pushed, and hands it to whoever pulls next."""

    def __init__(self):
        self.messages, self.pulls, self.status = [], 0, 200
        self.on_pull = lambda: None

    async def __call__(self, scope, receive, send):
        body = (await receive())["body"]
        if "push" in scope["path"]:
            self.messages.append(body)
            reply = b""
        else:
            self.pulls += 1
            reply = self.messages.pop() if self.messages else b""
            self.on_pull()
        await send({"type": "http.response.start", "status": self.status})
        await send({"type": "http.response.body", "body": reply})


class Caller:
    """A request that is on its way, and what came back."""

    def __init__(self, mailbox, path, body=b""):
        self.hung_up, self.replies = asyncio.Event(), []
        self._unread, self._path = [body], path
        self.task = asyncio.ensure_future(mailbox({"path": path}, self.receive, self.send))

    async def receive(self):
        if self._unread:
            return {"type": "http.request", "body": self._unread.pop()}
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.replies.append(message)

    async def result(self):
        await asyncio.wait_for(self.task, HANG_S)
        return b"".join(reply.get("body", b"") for reply in self.replies)


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def mailbox(server, monkeypatch):
    made = Mailbox(server)
    for box in made._boxes:
        monkeypatch.setattr(box, "hold_s", 10 * HANG_S)
    return made


async def until_held(server, n_pulls=1):
    while server.pulls < n_pulls:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("push", "pull"), DIRECTIONS.values(), ids=DIRECTIONS)
def test_a_held_caller_gets_a_message_as_soon_as_it_is_there(push, pull, server, mailbox):
    async def story():
        caller = Caller(mailbox, pull)
        await until_held(server)
        assert not caller.task.done()
        await Caller(mailbox, push, b"hello").result()
        assert await caller.result() == b"hello"

    asyncio.run(story())
    assert server.pulls == 2


def test_a_message_that_comes_while_the_server_answers_is_not_missed(server, mailbox):
    async def story():
        caller = Caller(mailbox, DIRECTIONS["questions"][1])
        pushed = []
        server.on_pull = lambda: (
            pushed or pushed.append(Caller(mailbox, DIRECTIONS["questions"][0], b"late"))
        )
        assert await caller.result() == b"late"

    asyncio.run(story())


def test_a_message_for_a_caller_that_hung_up_stays_for_its_next_request(server, mailbox):
    push, pull = DIRECTIONS["questions"]

    async def story():
        caller = Caller(mailbox, pull)
        await until_held(server)
        caller.hung_up.set()
        assert await caller.result() == b""
        assert caller.replies == []
        await Caller(mailbox, push, b"kept").result()
        assert await Caller(mailbox, pull).result() == b"kept"

    asyncio.run(story())


def test_everybody_is_let_go_when_the_server_ends(server, mailbox):
    async def story():
        callers = [Caller(mailbox, pull) for _, pull in DIRECTIONS.values()]
        await until_held(server, 2)
        mailbox.close()
        for caller in callers:
            assert await caller.result() == b""
            assert caller.replies[0]["status"] == 200
        assert await Caller(mailbox, DIRECTIONS["answers"][1]).result() == b""

    asyncio.run(story())


def test_a_caller_is_held_no_longer_than_agreed(server, mailbox):
    mailbox._boxes[1].hold_s = 0.01

    async def story():
        assert await Caller(mailbox, DIRECTIONS["answers"][1]).result() == b""

    asyncio.run(story())
    assert server.pulls == 1  # nobody brought anything, so the answer is still the same


def test_a_refusal_is_passed_on_at_once(server, mailbox):
    server.status = 401

    async def story():
        caller = Caller(mailbox, DIRECTIONS["questions"][1])
        await caller.result()
        assert caller.replies[0]["status"] == 401

    asyncio.run(story())
    assert server.pulls == 1
