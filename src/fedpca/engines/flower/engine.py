"""The engine that asks sites through Flower's server.

A fit is the program of one run of Flower, claimed from outside the server. A question is pushed to
each site's node, and again where a node came online anew in the meantime: a site that was killed and
started again is asked again, and one that has answered gives the same answer. So a run outlives sites
that come and go, and a server that is started again, as long as the time limit allows.
"""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import httpx
from flwr.common.constant import SubStatus
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import HttpGrid

from fedpca.engines.flower.wire import Link, access_token, mapped_errors, message_to, unwrap, wrap
from fedpca.errors import (
    InputError,
    LinkError,
    LinkRefused,
    MessageError,
    QuorumLost,
    SiteError,
    SiteFailed,
    SiteTimeout,
)
from fedpca.message import Message, encode

PAUSE = 0.05  # seconds between two looks for answers
LOOK_AT_NODES = 0.5  # seconds between two looks at which sites are online
ABSENT = 60.0  # seconds for which a site that went away, or the server, is waited for

# What Flower asks for to start a run: the name of an app, whose code nobody fetches or runs.
_APP = """
[project]
name = "fedpca"
version = "1.0.0"
description = "Questions to the sites' own installations of fedpca; this app holds no code."
license = { text = "BSD-3-Clause" }
[tool.flwr.app]
publisher = "fedpca"
[tool.flwr.app.components]
serverapp = "fedpca:none"
clientapp = "fedpca:none"
"""


class FlowerEngine:
    """Carries messages to sites that joined the server at ``link``.

    Parameters
    ----------
    link : Link
        The coordinator's server.
    secret : bytes
        Its secret, by which it knows who may start a run.
    sites : int or list of str, optional
        How many sites, or which, to wait for; all that have keys by default. Sums are in the order of
        a list, else in that of the names.
    quorum : int, optional
        With how many of them it goes on where not all come.
    wait : float
        Seconds for which it waits until they are there.
    """

    def __init__(
        self,
        link: Link,
        secret: bytes,
        *,
        sites: int | Sequence[str] | None,
        quorum: int | None,
        wait: float,
    ) -> None:
        self._link, self._secret = link, secret
        self._grid: HttpGrid | None = None
        self._heart: HeartbeatSender | None = None
        self._control = ControlHttpClient.from_server_address(
            link.address, link.plain, link.ca, interceptors=[_Bearer(access_token(secret))]
        )
        self.names = self._await_sites(sites, quorum, wait)

    def fingerprints(self) -> Mapping[str, str]:
        """None: rows are looked at by their sites only."""
        return {}

    def ask(
        self, names: Sequence[str], request: Message, timeout: float | None
    ) -> Iterator[tuple[str, bytes | SiteError]]:
        """Each site's answer as it comes; the time limit is that of all together."""
        data = encode(request)
        pending = dict.fromkeys(
            names, ""
        )  # sites, and since when the node that was asked is online
        asked: dict[str, str] = {}  # Flower's number of a question, and whom it went to
        began = time.monotonic()
        seen = dict.fromkeys(names, began)  # when the site was last online
        look = began
        while pending:
            now = time.monotonic()
            try:
                with mapped_errors(self._link):
                    if now >= look:
                        look = now + LOOK_AT_NODES
                        online = self._online()
                        seen |= dict.fromkeys(online, now)
                        asked |= self._push(data, pending, online)
                    for name, reply in self._pull(asked):
                        if name in pending:
                            del pending[name]
                            yield name, reply
            except LinkError as error:
                if now - max(seen.values()) > ABSENT:
                    raise
                self.close()
                asked, pending, look = {}, dict.fromkeys(pending, ""), now + LOOK_AT_NODES
                failure: LinkError | None = error
            else:
                failure = None
            for name in list(pending):
                gone = now - seen[name]
                if timeout is not None and now - began > timeout:
                    why = "" if gone < 2 * LOOK_AT_NODES else ", and is not online"
                    del pending[name]
                    yield name, SiteTimeout(f"no answer within {timeout:g} s{why}")
                elif gone > ABSENT and failure is None:
                    del pending[name]
                    yield name, SiteFailed(f"offline for {gone:.0f} s")
            if pending:
                time.sleep(PAUSE)

    def close(self) -> None:
        """End the run on the server; asking again begins another one."""
        grid, self._grid = self._grid, None
        if grid is None:
            return
        if self._heart is not None and self._heart.is_running:
            self._heart.stop()
        with suppress(httpx.HTTPError):
            grid._runtime_client.PushTaskOutput(
                PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            )
        grid.close()

    def _await_sites(
        self, sites: int | Sequence[str] | None, quorum: int | None, wait: float
    ) -> list[str]:
        """The names of the sites, once they are online, or enough of them for the quorum."""
        until = time.monotonic() + wait
        while True:
            is_last = time.monotonic() > until
            try:
                with mapped_errors(self._link):
                    nodes = self._control.ListNodes(ListNodesRequest()).nodes_info
            except LinkError as error:
                if is_last or isinstance(error, LinkRefused):
                    raise
                time.sleep(LOOK_AT_NODES)
                continue
            online = {node.name for node in nodes if node.status == "online"}
            wanted = self._wanted(sites, sorted(node.name for node in nodes))
            here = [name for name in wanted if name in online]
            if len(here) == (sites if isinstance(sites, int) else len(wanted)):
                return here
            if isinstance(sites, int) and len(here) > sites:
                raise InputError(
                    f"{len(here)} sites are online at {self._link.address} and {sites} are wanted; "
                    f"name those to ask, of {', '.join(here)}"
                )
            if is_last:
                break
            time.sleep(LOOK_AT_NODES)
        missing = [name for name in wanted if name not in online]
        if quorum is None or len(here) < quorum:
            raise QuorumLost(
                f"{len(here)} of {sites if isinstance(sites, int) else len(wanted)} sites are online "
                f"after {wait:g} s, and the quorum is {'all' if quorum is None else quorum}; "
                f"not online: {', '.join(missing)}"
            )
        return here

    def _wanted(self, sites: int | Sequence[str] | None, known: list[str]) -> list[str]:
        """The sites that may be asked, of those whose keys the server has."""
        if sites is None or isinstance(sites, int):
            if sites is not None and not 1 <= sites <= len(known):
                raise InputError(
                    f"sites={sites} is not between 1 and the {len(known)} whose keys are at "
                    f"{self._link.address}: {', '.join(known)}"
                )
            return known
        strangers = [name for name in sites if name not in known]
        if strangers:
            raise InputError(
                f"no key of {', '.join(strangers)} is at {self._link.address}, which knows "
                f"{', '.join(known)}"
            )
        return list(sites)

    def _online(self) -> dict[str, NodeInfo]:
        nodes = self._control.ListNodes(ListNodesRequest()).nodes_info
        return {node.name: node for node in nodes if node.status == "online"}

    def _push(
        self, data: bytes, pending: dict[str, str], online: Mapping[str, NodeInfo]
    ) -> dict[str, str]:
        """Ask the pending sites that are online and were not asked since they came."""
        due = [
            name
            for name, since in pending.items()
            if name in online and online[name].last_activated_at != since
        ]
        if not due:
            return {}
        grid = self._grid or self._begin()
        content = wrap(data)
        numbers = grid.push_messages(
            [message_to(online[name].node_id, grid.run.run_id, content) for name in due]
        )
        pending |= {name: online[name].last_activated_at for name in due}
        return {number: name for number, name in zip(numbers, due, strict=True) if number}

    def _pull(self, asked: dict[str, str]) -> Iterator[tuple[str, bytes | SiteError]]:
        """The answers that are there, each once."""
        if not asked or self._grid is None:
            return
        for reply in self._grid.pull_messages(list(asked)):
            name = asked.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                continue  # Flower's own word for a node that is gone
            try:
                yield name, unwrap(reply)
            except MessageError as error:
                yield name, SiteFailed(str(error))

    def _begin(self) -> HttpGrid:
        """Start a run on the server and claim it for this process."""
        link = self._link
        bundle = io.BytesIO()
        with zipfile.ZipFile(bundle, "w") as archive:
            archive.writestr(zipfile.ZipInfo("pyproject.toml"), _APP)
        self._control.StartRun(StartRunRequest(fab=Fab(content=bundle.getvalue())))
        with RuntimeHttpClient.from_server_address(
            link.address,
            link.plain,
            link.ca,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                SuperExecAuthHttpInterceptor(
                    master_secret=self._secret,
                    protected_methods=["/flwr.proto.Runtime/AcquireTask"],
                ),
            ],
        ) as client:
            token = client.AcquireTask(
                AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            ).token
        grid = HttpGrid(link.address, link.plain, link.ca, token=token)
        grid._retry_invoker.max_tries = 1  # `ask` tries again itself, and within its time limit
        grid.set_run(run_from_proto(grid._runtime_client.PullTaskInput(PullTaskInputRequest()).run))
        self._heart = HeartbeatSender(lambda: _beat(grid))
        self._heart.start()
        self._grid = grid
        return grid


class _Bearer:
    """Shows the coordinator's token with every request."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        add_headers(context.request, {"authorization": f"Bearer {self._token}"})
        return call_next(context)


def _beat(grid: HttpGrid) -> bool:
    """Tell the server that the run's program lives; `ask` meets what goes wrong and handles it."""
    with suppress(httpx.HTTPError):
        grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    return True
