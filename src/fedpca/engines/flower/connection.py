"""Reach Flower's server: its address, clients for it, and errors on the way."""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import httpx
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.protobuf.client import ProtobufClient, ProtobufClientInterceptor

from fedpca.errors import FileError, InputError, LinkError, LinkRefused

READ_TIMEOUT_S = 10.0  # a call fails after this long without a byte from the server

Client = TypeVar("Client", bound=ProtobufClient)


@dataclass(frozen=True)
class Link:
    """The address of the coordinator's server, and the certificate authority that vouches for it.

    Without an authority, the system's own authorities apply. ``plain`` means HTTP without TLS.
    """

    address: str
    ca: bytes | None = None
    plain: bool = False

    def client(self, kind: type[Client], *interceptors: ProtobufClientInterceptor) -> Client:
        """Return one of Flower's clients, connected to this server."""
        with _environment_errors():
            client = kind.from_server_address(self.address, self.plain, self.ca, interceptors)
        client._client.timeout = httpx.Timeout(READ_TIMEOUT_S)
        return client

    @property
    def through(self) -> str:
        """Return words that name the proxy on the way, or an empty text if there is none."""
        host = self.address.rpartition(":")[0].strip("[]")
        named = [f"{kind}_PROXY" for kind in ("HTTP" if self.plain else "HTTPS", "ALL")]
        used = [name for name in named if name in _proxies()]
        if not used or urllib.request.proxy_bypass(host):
            return ""
        return f" (through the proxy that {used[0]} names)"


def _proxies() -> list[str]:
    """Return the environment variables that name proxies."""
    proxies = urllib.request.getproxies()
    return [f"{kind.upper()}_PROXY" for kind in ("http", "https", "all") if kind in proxies]


@contextmanager
def _environment_errors() -> Iterator[None]:
    """Turn errors that the environment causes into errors of ours that name the variable."""
    variables = " or ".join(_proxies())
    try:
        yield
    except ImportError:  # only a SOCKS proxy needs another package
        raise InputError(
            f"{variables} names a SOCKS proxy; run pip install socksio, or name an http:// proxy"
        ) from None
    except (httpx.InvalidURL, ValueError):
        if not variables:
            raise
        raise InputError(
            f"{variables} is not the address of a proxy; write it as http://proxy.example.org:3128"
        ) from None
    except OSError as error:
        path = os.environ.get("SSL_CERT_FILE")
        if not path:
            raise
        raise FileError(
            f"SSL_CERT_FILE={path} cannot be read: {error.strerror}; correct it, or use --ca"
        ) from None


def access_token(secret: bytes) -> str:
    """Return the token that proves knowledge of the coordinator's secret."""
    return hmac.new(secret, b"fedpca coordinator", hashlib.sha256).hexdigest()


def beating(beat: Callable[[], object], every: float) -> threading.Event:
    """Call ``beat`` on a thread until the returned event is set.

    Its errors are ignored: the other calls fail in the same way, and their errors are handled.
    """
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(every):
            with suppress(httpx.HTTPError, RuntimeError):  # a closed client raises RuntimeError
                beat()

    threading.Thread(target=go_on, daemon=True).start()
    return stop


@contextmanager
def mapped_errors(link: Link) -> Iterator[None]:
    """Turn errors of Flower and its transport into errors of ours that say what to do."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        flower_error = FlowerError.from_json(error.response.text)
        text = flower_error.message if flower_error else error.response.reason_phrase
        raise LinkError(f"the server at {link.address} says: {text}") from error
    except httpx.TransportError as error:
        raise _unreachable(link, error) from None
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InputError(f"{link.address!r}{link.through} is not an address: {error}") from None
    except ValueError as error:
        if "protobuf" not in str(error):
            raise
        raise LinkError(f"{link.address} is not a fedpca server; is the port right?") from None
    except (ObjectPullError, ObjectPushError) as error:
        raise LinkError(f"a message was cut off on its way through {link.address}") from error


def is_unauthorized(error: httpx.HTTPError | LinkError) -> bool:
    """Return whether the server refused to recognize the caller."""
    cause = error.__cause__ if isinstance(error, LinkError) else error
    return isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code in (401, 403)


def _unreachable(link: Link, error: httpx.TransportError) -> LinkError:
    """Return the error of ours that explains why the server cannot be reached."""
    text = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return LinkRefused(
            f"the given authority does not vouch for the certificate of {link.address} ({text}); ask "
            "the coordinator for the right ca.pem and host name"
        )
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError) or "SSL" in text:
        return LinkRefused(f"{link.address} does not speak TLS ({text}); is the port right?")
    if isinstance(error, httpx.RemoteProtocolError) and link.plain:
        return LinkRefused(
            f"{link.address} does not speak plain HTTP; use --ca ca.pem instead of --insecure"
        )
    return LinkError(f"no connection to {link.address}{link.through}: {text}")
