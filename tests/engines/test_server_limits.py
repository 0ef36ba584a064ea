"""The server answers what fedpca asks, in time and in bounds; meanwhile an honest fit goes on."""

from __future__ import annotations

import socket
import ssl
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from flwr.app import Message as FlowerMessage
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedpca import FederatedPCA, Federation
from fedpca.cli.demo_federation import await_port
from fedpca.engines import credentials
from fedpca.engines.flower import request_filter
from fedpca.engines.flower.connection import Link, access_token
from fedpca.engines.flower.envelope import Incoming, send, wrap
from fedpca.engines.flower.listener import CONNECTIONS_FOR_FITS, CONNECTIONS_PER_SITE
from fedpca.engines.flower.run import ClaimedRun, control_client
from processes import HANG_S, Processes, until
from support import gapped_rows

pytestmark = pytest.mark.process
SITES = ("north", "south", "idle")
HONEST = SITES[:2]
TIMEOUT_S = 3.0
MAX_SITE_BYTES = 2_000_000
LIMITS = f"HEADER_TIMEOUT_S={TIMEOUT_S},BODY_TIMEOUT_S={TIMEOUT_S},MAX_SITE_BYTES={MAX_SITE_BYTES}"
SMALL = Path(__file__).parents[1] / "small_server.py"
STUCK = SMALL.with_name("stuck_site.py")


class SmallProcesses(Processes):
    """A federation whose server has small limits."""

    def serve(self, sites):
        made = () if self.credentials.exists() else ("--make-certificates",)
        keys = [f"{site}.pub" for site in sites]
        where = ("--credentials", "tls", "--port", str(self.port))
        server = self._start([sys.executable, str(SMALL), LIMITS, "serve", *keys, *made, *where])
        await_port(self.port, HANG_S)
        return server


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    rng = np.random.default_rng(3)
    for site in SITES:
        np.save(folder / f"{site}.npy", gapped_rows(rng, 60, 6, 2))
    processes = SmallProcesses(folder, SITES)
    for site in HONEST:
        processes.join(site, f"{site}.npy")
    processes.federation(sites=HONEST).close()
    yield processes
    processes.stop_all()


def fit(there, **options):
    with there.federation(sites=HONEST, **options) as fed:
        return FederatedPCA(2, random_state=0).fit(fed)


def near(there, *sites):
    rows = {site: there.folder / f"{site}.npy" for site in sites}
    return FederatedPCA(2, random_state=0).fit(Federation.local(rows))


def trust(there):
    return ssl.create_default_context(cafile=there.credentials / "ca.pem")


def connect(there):
    plain = socket.create_connection(("localhost", there.port), timeout=HANG_S)
    return trust(there).wrap_socket(plain, server_hostname="localhost")


def is_closed(connection):
    """Wait until the server has ended the connection, and return whether it did so unanswered."""
    try:
        return connection.recv(1) == b""
    except (ConnectionError, ssl.SSLError):
        return True


@contextmanager
def site_client(there, name):
    key = credentials.read_site_key(there.folder / f"{name}.key")
    with _link(there).client(
        FleetHttpClient, NodeAuthHttpInterceptor(key, key.public_key())
    ) as client:
        public = public_key_to_bytes(key.public_key())
        until(lambda: _is_free(there, name), f"{name} going offline")
        activated = client.ActivateNode(
            ActivateNodeRequest(public_key=public, heartbeat_interval=60.0)
        )
        yield client, Node(node_id=activated.node_id)
        client.DeactivateNode(DeactivateNodeRequest(node_id=activated.node_id))


def _is_free(there, name):
    with _control(there) as control:
        nodes = control.ListNodes(ListNodesRequest()).nodes_info
    return all(node.status != "online" for node in nodes if node.name == name)


def _link(there):
    return Link(there.address, credentials.read_authority(there.credentials / "ca.pem"))


def _control(there):
    return control_client(_link(there), credentials.read_secret(there.credentials))


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\nx-",
        b"POST /v1/runtime/acquire-task HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\nabc",
        b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: a\r\n\r\nGET /health",
    ],
    ids=["nothing", "half a header", "half a body", "no credentials", "a second request"],
)
def test_a_request_that_does_not_end_is_ended_while_others_are_answered(there, start):
    with connect(there) as connection:
        connection.sendall(start)
        assert fit(there).run_.sites == HONEST
        while connection.recv(1000):  # an answer to what was complete, or the refusal
            pass


def test_a_trickle_does_not_put_off_the_end(there):
    """The clock runs from the beginning of a header or a body, and not from its last byte."""
    for start in (
        b"GET /health HTTP/1.1\r\nhost: ",
        b"POST /v1/runtime/acquire-task HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\n",
    ):
        with connect(there) as connection:
            connection.sendall(start)
            connection.settimeout(0.05)
            began, is_over = time.monotonic(), False
            while not is_over:
                assert time.monotonic() - began < HANG_S
                try:
                    connection.sendall(b"a")
                    is_over = connection.recv(1000) == b""
                except TimeoutError:
                    continue
                except (ConnectionError, ssl.SSLError):
                    is_over = True


def test_a_header_that_is_too_long_is_refused(there):
    with connect(there) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nx: ")
        answer = b""
        for _ in range(64):
            try:
                connection.sendall(b"a" * 1024)
            except (ConnectionError, ssl.SSLError):
                break
        with suppress(ConnectionError, ssl.SSLError):
            answer = connection.recv(1000)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert fit(there).run_.sites == HONEST


def held_open(there, stack, source):
    """A connection of a stranger at another loopback address, who sends nothing."""
    where = ("127.0.0.1", there.port)
    made = socket.create_connection(where, timeout=HANG_S, source_address=(source, 0))
    return stack.enter_context(made)


def test_strangers_at_five_networks_lock_nobody_out(there):
    most = CONNECTIONS_FOR_FITS + CONNECTIONS_PER_SITE * len(SITES)
    with ExitStack() as stack:
        for network in range(1, 6):
            held = [held_open(there, stack, f"127.0.{network}.1") for _ in range(most + 5)]
        assert is_closed(held[0])
        until(
            lambda: "ended a connection that has shown no key" in there.log(there.server),
            "a line about connections that were ended",
        )
        assert fit(there).components_.tobytes() == near(there, *HONEST).components_.tobytes()
    for site in there.running:
        assert site.poll() is None, there.log(site)


def test_one_network_s_connections_beyond_the_limit_end_and_honest_ones_come_back(there):
    most = CONNECTIONS_FOR_FITS + CONNECTIONS_PER_SITE * len(SITES)
    with ExitStack() as stack:
        held = [held_open(there, stack, f"127.0.0.{i % 200 + 2}") for i in range(most + 20)]
        assert is_closed(held[0])
        assert fit(there).components_.tobytes() == near(there, *HONEST).components_.tobytes()
    for site in there.running:
        assert site.poll() is None, there.log(site)


def test_what_fedpca_does_not_use_is_not_there(there):
    with httpx.Client(base_url=f"https://{there.address}", verify=trust(there)) as client:
        found = [
            path
            for path in (
                "/docs",
                "/redoc",
                "/openapi.json",
                "/",
                "/health/",
                "/v1/health",
                "//health",
            )
            if client.get(path).status_code != 404
        ]
        assert found == []
        assert client.get("/health").status_code == 200
        assert client.get("/v1/control/list-nodes").status_code == 404
        token = access_token(credentials.read_secret(there.credentials))
        headers = {"authorization": f"Bearer {token}", "content-type": PROTOBUF_MEDIA_TYPE}
        open_routes = {
            path
            for method, path in PROTOBUF_REQUEST_TYPES
            if client.request(method, path, headers=headers).status_code != 404
        }
    let_in = {path for _, path in request_filter.ROUTES}
    assert open_routes == let_in & {path for _, path in PROTOBUF_REQUEST_TYPES}


def test_the_secret_registers_and_unregisters_no_key(there):
    there.run("site-key", "stranger", check=False)
    key = credentials.read_site_key(there.folder / "stranger.key")
    public = public_key_to_bytes(key.public_key())
    with _control(there) as control:
        for call in (
            lambda: control.RegisterNode(RegisterNodeRequest(public_key=public)),
            lambda: control.UnregisterNode(UnregisterNodeRequest(node_id=1)),
        ):
            with pytest.raises(httpx.HTTPStatusError) as refused:
                call()
            assert refused.value.response.status_code == 404
    with (
        _link(there).client(
            FleetHttpClient, NodeAuthHttpInterceptor(key, key.public_key())
        ) as client,
        pytest.raises(httpx.HTTPStatusError) as refused,
    ):
        client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=60.0))
    assert refused.value.response.status_code == 404


def test_a_body_without_credentials_is_not_read(there):
    big = bytes(8 << 20)
    with httpx.Client(base_url=f"https://{there.address}", verify=trust(there)) as client:
        for path, status in {
            "/v1/fleet/push-object": 401,
            "/v1/control/start-run": 413,
            "/v1/runtime/push-object": 401,
            "/v1/runtime/acquire-task": 413,
            "/fedpca/hold": 401,
        }.items():
            assert client.post(path, content=big).status_code == status, path
        chunks = client.post("/fedpca/hold", content=iter([b"{}"]))
    assert chunks.status_code == 413


@contextmanager
def asking(there):
    """Yield a function that asks a site something, and one with which the site answers."""
    with site_client(there, "idle") as (client, node), _control(there) as control:
        run = ClaimedRun(_link(there), credentials.read_secret(there.credentials), control)

        def ask():
            (number,) = run.push(np.random.default_rng().bytes(10), [node.node_id])
            pulled = client.PullMessages(PullMessagesRequest(node=node))
            run_id = pulled.messages_list[0].metadata.run_id
            question = Incoming(client, node, run_id, pulled.message_object_trees[0]).fetch()
            return question, lambda: [data for _, data in run.pull([number], 1 << 30)]

        def answer(reply):
            def announce(messages, trees):
                return client.PushMessages(
                    PushMessagesRequest(
                        node=node, messages_list=messages, message_object_trees=trees
                    )
                )

            try:
                send(client, node, [reply], announce)
            except httpx.HTTPStatusError as error:
                return error.response.status_code
            return 200

        yield ask, answer
        run.close()


def test_a_site_stores_only_answers_to_questions_that_it_was_asked(there):
    with asking(there) as (ask, answer):
        question, answers = ask()
        stray = FlowerMessage(wrap(b"stray"), reply_to=question)
        stray.metadata.__dict__["_reply_to_message_id"] = "0" * 64
        assert answer(stray) == 409
        assert answer(FlowerMessage(wrap(b"first"), reply_to=question)) == 200
        assert answer(FlowerMessage(wrap(b"second"), reply_to=question)) == 409
        assert answers() == [(b"first", None)]
        assert answer(FlowerMessage(wrap(b"third"), reply_to=question)) == 409


def test_a_site_cannot_fill_the_server_s_memory(there):
    data = [np.random.default_rng(seed).bytes(MAX_SITE_BYTES * 2 // 3) for seed in range(3)]
    with asking(there) as (ask, answer):
        question, answers = ask()
        assert answer(FlowerMessage(wrap(data[0]), reply_to=question)) == 200
        too_much, _ = ask()
        assert answer(FlowerMessage(wrap(data[1]), reply_to=too_much)) == 413
        assert answers() == [(data[0], None)]
        question, answers = ask()
        assert answer(FlowerMessage(wrap(data[2]), reply_to=question)) == 200  # there is room again
        assert answers() == [(data[2], None)]


def test_a_site_ends_a_question_that_takes_too_long_and_answers_the_next(there):
    own = ("--name", "idle", "--data", "idle.npy", "--key", "idle.key", "--ca", "tls/ca.pem")
    until(lambda: _is_free(there, "idle"), "idle going offline")
    site = there._start(
        [sys.executable, str(STUCK), "count_and_sum", "join", there.address, *own, "--timeout", "5"]
    )
    with there.federation(sites=[*HONEST, "idle"]) as fed:
        model = FederatedPCA(2, random_state=0).fit(fed)
    there.stop(site)
    assert model.run_.sites == (*HONEST, "idle")
    assert model.components_.tobytes() == near(there, *HONEST, "idle").components_.tobytes()
    assert "count_and_sum: received" in there.log(site)
    assert "not answered: work on this question was stopped after 5 s" in there.log(site)
