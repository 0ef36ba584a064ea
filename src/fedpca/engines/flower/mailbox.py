"""Hold each request for messages until there is a message, so that callers need not ask repeatedly.

Flower's server answers immediately, with or without a message. So sites and fits would have to choose
between asking often, which keeps everybody busy, and asking rarely, which delays every round.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedpca.engines.flower.connection import QUESTION_HOLD_S
from fedpca.engines.flower.request_filter import again, whole_body


@dataclass
class _Box:
    """Messages in one direction: the paths that bring and fetch them, and how long to hold a fetch."""

    push: str
    pull: str
    hold_s: float
    news: asyncio.Event = field(default_factory=asyncio.Event)  # set when a message arrives


class Mailbox:
    """Middleware that holds requests for messages while there are none."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._is_closed = app, False
        self._boxes = (
            _Box("/v1/runtime/push-messages", "/v1/fleet/pull-messages", hold_s=QUESTION_HOLD_S),
            # held only briefly, since a fit also checks which sites are online
            _Box("/v1/fleet/push-messages", "/v1/runtime/pull-messages", hold_s=0.5),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path")
        for box in self._boxes:
            if path == box.pull:
                await self._hold(box, scope, receive, send)
                return
        await self._app(scope, receive, send)
        for box in self._boxes:
            if path == box.push:
                _tell(box)

    def close(self) -> None:
        """Answer all requests that are held, and hold no more from now on."""
        self._is_closed = True
        for box in self._boxes:
            _tell(box)

    async def _hold(self, box: _Box, scope: Scope, receive: Receive, send: Send) -> None:
        body = await whole_body(receive)
        if body is None:
            return  # the caller is gone
        clock = asyncio.get_running_loop().time
        until, gone = clock() + box.hold_s, asyncio.ensure_future(receive())
        try:
            while True:
                news = box.news  # before asking, so that nothing can arrive unnoticed in between
                replies = await self._replies(scope, body)
                left = until - clock()
                if not _is_empty(replies) or left <= 0 or self._is_closed:
                    break
                await _first_of(gone, news, left)
                if gone.done():
                    return  # a message must stay until this caller asks again
                if not news.is_set():
                    break  # the time is up
        finally:
            gone.cancel()
        for reply in replies:
            await send(reply)

    async def _replies(self, scope: Scope, body: bytes) -> list[Message]:
        """Return what the server answers now."""
        replies: list[Message] = []

        async def keep(message: Message) -> None:
            replies.append(message)

        await self._app(dict(scope), again(body), keep)
        return replies


def _tell(box: _Box) -> None:
    news, box.news = box.news, asyncio.Event()
    news.set()


def _is_empty(replies: list[Message]) -> bool:
    """Return whether an answer contains neither an error nor a message."""
    return replies[0].get("status") == 200 and not any(reply.get("body") for reply in replies)


async def _first_of(gone: asyncio.Future[Any], news: asyncio.Event, seconds: float) -> None:
    """Wait until the caller is gone, there is news, or the time is up."""
    arrived: asyncio.Future[Any] = asyncio.ensure_future(news.wait())
    try:
        await asyncio.wait({gone, arrived}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        arrived.cancel()
