"""Connect to Flower's server, and translate connection errors."""

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
from fedpca.protocol.printable import MAX_REASON_CHARS, printable

READ_TIMEOUT_S = 10.0  # a call fails if the server is silent for this long
# how long the server holds a site's request for questions while there are none
QUESTION_HOLD_S = 7.0

Client = TypeVar("Client", bound=ProtobufClient)


@dataclass(frozen=True)
class Link:
    """The address of the coordinator's server, and the certificate authority that vouches for it.

    If no authority is given, the system's authorities are used. ``plain`` means HTTP without TLS.
    """

    address: str
    ca: bytes | None = None
    plain: bool = False

    def client(self, kind: type[Client], *interceptors: ProtobufClientInterceptor) -> Client:
        """Return a Flower client of the given type for this server."""
        with _environment_errors():
            client = kind.from_server_address(self.address, self.plain, self.ca, interceptors)
        client._client.timeout = httpx.Timeout(READ_TIMEOUT_S)
        return client

    @property
    def through(self) -> str:
        """Return a phrase that names the proxy in use, or an empty string if there is none."""
        host = self.address.rpartition(":")[0].strip("[]")
        named = [f"{kind}_PROXY" for kind in ("HTTP" if self.plain else "HTTPS", "ALL")]
        used = [name for name in named if name in _proxies()]
        if not used or urllib.request.proxy_bypass(host):
            return ""
        return f" (through the proxy in {used[0]})"


def _proxies() -> list[str]:
    """Return the environment variables that name proxies."""
    proxies = urllib.request.getproxies()
    return [f"{kind.upper()}_PROXY" for kind in ("http", "https", "all") if kind in proxies]


@contextmanager
def _environment_errors() -> Iterator[None]:
    """Turn errors caused by environment variables into fedpca errors that name the variable."""
    variables = " or ".join(_proxies())
    try:
        yield
    except ImportError:  # only a SOCKS proxy needs an extra package
        raise InputError(
            f"{variables} specifies a SOCKS proxy; run pip install socksio, or use an http:// proxy"
        ) from None
    except (httpx.InvalidURL, ValueError):
        if not variables:
            raise
        raise InputError(
            f"{variables} is not a valid proxy address; use the form http://proxy.example.org:3128"
        ) from None
    except OSError as error:
        path = os.environ.get("SSL_CERT_FILE")
        if not path:
            raise
        raise FileError(
            f"cannot read SSL_CERT_FILE={path}: {error.strerror}; correct the path, or use --ca"
        ) from None


def access_token(secret: bytes) -> str:
    """Return a token that proves that the caller has the coordinator's secret."""
    return hmac.new(secret, b"fedpca coordinator", hashlib.sha256).hexdigest()


def beating(beat: Callable[[], object], every: float) -> threading.Event:
    """Call ``beat`` repeatedly on a thread until the returned event is set.

    Errors in ``beat`` are ignored, because other calls fail the same way and handle the error.
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
    """Turn errors from Flower and its transport into fedpca errors that explain what to do."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        flower_error = FlowerError.from_json(error.response.text)
        said = flower_error.message if flower_error else error.response.reason_phrase
        text = printable(said, MAX_REASON_CHARS)
        raise LinkError(f"the server at {link.address} returned an error: {text}") from error
    except httpx.TransportError as error:
        raise _unreachable(link, error) from None
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InputError(
            f"{link.address!r}{link.through} is not a valid address: {error}; use HOST or HOST:PORT"
        ) from None
    except ValueError as error:
        if "protobuf" not in str(error):
            raise
        raise LinkError(f"{link.address} is not a fedpca server; check the port") from None
    except (ObjectPullError, ObjectPushError) as error:
        raise LinkError(f"a message through {link.address} was cut off") from error


def is_unauthorized(error: httpx.HTTPError | LinkError) -> bool:
    """Return whether the server rejected the caller's credentials."""
    cause = error.__cause__ if isinstance(error, LinkError) else error
    return isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code in (401, 403)


def _unreachable(link: Link, error: httpx.TransportError) -> LinkError:
    """Return a fedpca error that explains why the server cannot be reached."""
    text = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return LinkRefused(
            f"the certificate of {link.address} cannot be verified ({text}); ask the coordinator for "
            "the right ca.pem and host name"
        )
    # a server that is busy or shuts down may close a connection before it is encrypted
    is_cut_off = "EOF" in text
    is_from_tls = isinstance(error.__cause__ or error.__context__, ssl.SSLError) or "SSL" in text
    if is_from_tls and not is_cut_off:
        return LinkRefused(f"{link.address} does not use TLS ({text}); check the port")
    if isinstance(error, httpx.RemoteProtocolError) and link.plain:
        return LinkRefused(
            f"{link.address} does not use plain HTTP; use --ca ca.pem instead of --insecure"
        )
    return LinkError(f"cannot connect to {link.address}{link.through}: {text}")
