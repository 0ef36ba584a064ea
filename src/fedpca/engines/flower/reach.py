"""How Flower's server is reached: where it is, clients for its doors, what goes wrong on the way."""

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

SILENCE = 10.0  # seconds without a byte from the server after which a call has failed

Client = TypeVar("Client", bound=ProtobufClient)


@dataclass(frozen=True)
class Link:
    """Where the coordinator's server is, and the certificate authority by which it is known.

    Without an authority the usual ones are asked. ``plain`` is HTTP without TLS.
    """

    address: str
    ca: bytes | None = None
    plain: bool = False

    def client(self, kind: type[Client], *interceptors: ProtobufClientInterceptor) -> Client:
        """One of Flower's clients for this server."""
        with _environment_errors():
            client = kind.from_server_address(self.address, self.plain, self.ca, interceptors)
        client._client.timeout = httpx.Timeout(SILENCE)
        return client

    @property
    def through(self) -> str:
        """Which proxy is on the way, in words; nothing where there is none."""
        host = self.address.rpartition(":")[0].strip("[]")
        named = [f"{kind}_PROXY" for kind in ("HTTP" if self.plain else "HTTPS", "ALL")]
        used = [name for name in named if name in _proxies()]
        if not used or urllib.request.proxy_bypass(host):
            return ""
        return f" (through the proxy that {used[0]} names)"


def _proxies() -> list[str]:
    """The variables of the environment that name proxies."""
    found = urllib.request.getproxies()
    return [f"{kind.upper()}_PROXY" for kind in ("http", "https", "all") if kind in found]


@contextmanager
def _environment_errors() -> Iterator[None]:
    """What the environment can say wrongly, before anything is sent."""
    variables = " or ".join(_proxies())
    try:
        yield
    except ImportError:  # of what only such proxies need
        raise InputError(
            f"{variables} names a SOCKS proxy, which needs: pip install socksio; or name one of http://"
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
            f"SSL_CERT_FILE={path} cannot be read: {error.strerror}; set it right, or give --ca"
        ) from None


def access_token(secret: bytes) -> str:
    """What a coordinator shows that knows the secret."""
    return hmac.new(secret, b"fedpca coordinator", hashlib.sha256).hexdigest()


def beating(beat: Callable[[], object], every: float) -> threading.Event:
    """Call ``beat`` beside other work until the event is set.

    What goes wrong with it goes wrong with the other calls, too, where it is handled.
    """
    stop = threading.Event()

    def go_on() -> None:
        while not stop.wait(every):
            with suppress(httpx.HTTPError, RuntimeError):  # the latter of a client that was closed
                beat()

    threading.Thread(target=go_on, daemon=True).start()
    return stop


@contextmanager
def mapped_errors(link: Link) -> Iterator[None]:
    """What Flower and its transport raise, as errors of ours that say what to do."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        told = FlowerError.from_json(error.response.text)
        said = told.message if told else error.response.reason_phrase
        raise LinkError(f"the server at {link.address} says: {said}") from error
    except httpx.TransportError as error:
        raise _unreachable(link, error) from None
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InputError(f"{link.address!r}{link.through} is not an address: {error}") from None
    except ValueError as error:
        if "protobuf" not in str(error):
            raise
        raise LinkError(f"{link.address} is not a server of fedpca") from None
    except (ObjectPullError, ObjectPushError) as error:
        raise LinkError(f"a message was cut off on its way through {link.address}") from error


def is_unauthorized(error: httpx.HTTPError | LinkError) -> bool:
    """Whether the server does not know who asks."""
    cause = error.__cause__ if isinstance(error, LinkError) else error
    return isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code in (401, 403)


def _unreachable(link: Link, error: httpx.TransportError) -> LinkError:
    text = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return LinkRefused(
            f"the certificate of {link.address} is not one that the given authority vouches for "
            f"({text}); ask the coordinator for the right ca.pem and host name"
        )
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError) or "SSL" in text:
        return LinkRefused(f"{link.address} does not speak TLS ({text}); is the port right?")
    if isinstance(error, httpx.RemoteProtocolError) and link.plain:
        return LinkRefused(
            f"{link.address} does not speak plain HTTP; leave --insecure out and give --ca ca.pem"
        )
    return LinkError(f"no connection to {link.address}{link.through}: {text}")
