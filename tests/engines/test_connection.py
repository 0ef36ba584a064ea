"""How the server is reached: what the environment says of the way, and what goes wrong on it."""

from __future__ import annotations

import httpx
import pytest
from flwr.supercore.control.control_http_client import ControlHttpClient

from fedpca.engines.flower.connection import Link, mapped_errors
from fedpca.errors import FileError, InputError, LinkError

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def environment(monkeypatch):
    """One in which nothing is said of proxies but what a test says."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


def failing(link):
    with mapped_errors(link):
        raise httpx.ConnectError("Connection refused")


@pytest.mark.parametrize(
    ("variable", "value", "plain", "words"),
    [
        (
            "HTTPS_PROXY",
            "http://proxy:3128",
            False,
            r" \(through the proxy in HTTPS_PROXY\)",
        ),
        ("HTTP_PROXY", "http://proxy:3128", True, r" \(through the proxy in HTTP_PROXY\)"),
        ("all_proxy", "http://proxy:3128", False, r" \(through the proxy in ALL_PROXY\)"),
        ("HTTP_PROXY", "http://proxy:3128", False, ""),
        ("NO_PROXY", "localhost", False, ""),
    ],
)
def test_a_proxy_on_the_way_is_named(environment, variable, value, plain, words):
    environment.setenv(variable, value)
    with pytest.raises(LinkError, match=f"^cannot connect to host:9092{words}: Connection refused"):
        failing(Link("host:9092", plain=plain))


def test_a_proxy_that_is_not_used_is_not_named(environment):
    environment.setenv("HTTPS_PROXY", "http://proxy:3128")
    environment.setenv("NO_PROXY", "localhost")
    with pytest.raises(LinkError, match=r"^cannot connect to localhost:9092: "):
        failing(Link("localhost:9092"))


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (
            "ALL_PROXY",
            "socks5://proxy:1080",
            "^ALL_PROXY specifies a SOCKS proxy; .*pip install socksio",
        ),
        ("HTTPS_PROXY", "http://localhost:port", "^HTTPS_PROXY is not a valid proxy address; "),
        ("HTTPS_PROXY", "ftp://localhost:21", "^HTTPS_PROXY is not a valid proxy address; "),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_by_its_variable(environment, variable, value, words):
    environment.setenv(variable, value)
    with pytest.raises(InputError, match=words):
        Link("localhost:9092").client(ControlHttpClient)


def test_a_host_that_has_no_name_is_refused(environment):
    environment.setenv("HTTPS_PROXY", "http://localhost..:3128")
    link = Link("localhost:9092")
    with (
        pytest.raises(
            InputError, match=r"'localhost:9092' \(through the proxy .* not a valid address"
        ),
        mapped_errors(link),
        link.client(ControlHttpClient) as client,
    ):
        client._client.get("https://localhost:9092")


def test_a_file_of_authorities_that_is_not_there_is_named(environment, tmp_path):
    environment.setenv("SSL_CERT_FILE", str(tmp_path / "nowhere.pem"))
    with pytest.raises(FileError, match=r"cannot read SSL_CERT_FILE=.*nowhere\.pem: No such file"):
        Link("localhost:9092").client(ControlHttpClient)
