"""Create and read the files that prove identity: keys, certificates, and the coordinator's secret.

A site creates a key pair and sends the public key to the coordinator. The server admits only sites
whose public keys it was given. It presents a certificate, which the sites use to verify it. Anyone who
holds the coordinator's secret can ask the sites questions.

::

    north.key           a site's private key; never leaves it      (mode 600)
    north.pub           the matching public key, with the site's name
    ca.pem              the authority that vouches for the server
    server.pem          the server's certificate
    server.key          the server's private key                   (mode 600)
    coordinator.secret  lets a fit use the server                  (mode 600)

A secret that other users of the machine can read is refused, as ssh does, and not quietly mended: only
a person can know whether someone has read it.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import secrets
import socket
import ssl
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:  # pragma: no cover - the tests have it
    from fedpca.errors import InputError as _InputError

    raise _InputError(
        "keys and certificates require an extra; install it with: pip install 'fedpca[flower]'"
    ) from error

from fedpca.errors import FileError, InputError
from fedpca.storage import atomic

CA, CERTIFICATE, KEY, SECRET = "ca.pem", "server.pem", "server.key", "coordinator.secret"
_CURVE = ec.SECP384R1()
_VALIDITY = datetime.timedelta(days=825)  # the longest that common TLS clients accept
# the exceptions that `cryptography` can raise for a file with arbitrary contents
_MALFORMED = (
    LookupError,
    NotImplementedError,
    TypeError,
    UnsupportedAlgorithm,
    ValueError,
    x509.InvalidVersion,
)


def make_site_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a new key pair for a site, and return the private and public key paths."""
    if not re.fullmatch(r"\w[\w.-]{0,63}", name) or name.isdigit():
        raise InputError(
            f"{name!r} is not a valid site name; use at most 64 letters, digits, and ._-, and at least "
            "one character that is not a digit"
        )
    private_path, public_path = folder / f"{name}.key", folder / f"{name}.pub"
    _refuse_overwriting(private_path, public_path)
    key = ec.generate_private_key(_CURVE)
    _write(
        private_path,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
        private=True,
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(public_path, public + f" {name}\n".encode())
    return private_path, public_path


def read_site_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a site's private key."""
    try:
        key = serialization.load_ssh_private_key(_read(path), None)
    except _MALFORMED:
        raise FileError(f"{path} is not a key written by `fedpca site-key`") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FileError(f"{path} is the wrong type of key; create one with `fedpca site-key`")
    _refuse_open_to_others(path)
    return key


def read_public_keys(paths: Iterable[Path]) -> dict[str, ec.EllipticCurvePublicKey]:
    """Read the sites' public keys, and return them by the site names in the files."""
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    for path in paths:
        text = _read(path)
        try:
            key = serialization.load_ssh_public_key(text)
        except _MALFORMED:
            key = None
        words = text.split()
        if not isinstance(key, ec.EllipticCurvePublicKey) or len(words) != 3:
            raise FileError(f"{path} is not a public key written by `fedpca site-key`")
        name = words[2].decode(errors="replace")
        if name in keys:
            raise InputError(f"{path} is a second key for {name!r}; give only one key per site")
        if key in keys.values():
            raise InputError(f"{path} has the same key as a different site; each needs its own")
        keys[name] = key
    if not keys:
        raise InputError("a server needs its sites' public keys, as in north.pub south.pub")
    return keys


def make_certificates(folder: Path, hosts: Sequence[str] = ()) -> None:
    """Write a server certificate for these host names, and the authority that vouches for it.

    The authority's own key is discarded, so it cannot sign anything else. If no names are given, the
    certificate covers localhost and this machine.
    """
    paths = [folder / name for name in (CA, CERTIFICATE, KEY)]
    _refuse_overwriting(*paths)
    folder.mkdir(parents=True, exist_ok=True)
    names = list(hosts) or ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    now = datetime.datetime.now(datetime.UTC)
    authority_key, key = ec.generate_private_key(_CURVE), ec.generate_private_key(_CURVE)
    authority_name = _name("fedpca authority")

    def about(subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))  # a site's clock may be slow
            .not_valid_after(now + _VALIDITY)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
        )

    authority = (
        about(authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA384())
    )
    certificate = (
        about(_name(names[0]), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), False)
        .sign(authority_key, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(paths[2], private, private=True)
    _write(paths[1], certificate.public_bytes(pem))
    _write(paths[0], authority.public_bytes(pem))


def read_authority(path: Path) -> bytes:
    """Read a certificate authority from a file."""
    text = _read(path)
    try:
        x509.load_pem_x509_certificates(text)
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text.decode("ascii"))
    except (*_MALFORMED, ssl.SSLError):
        raise FileError(
            f"{path} does not contain a PEM certificate; ask the coordinator for the right ca.pem"
        ) from None
    return text


def server_files(folder: Path) -> tuple[Path, Path]:
    """Return the paths of the server's certificate and key, after checking that they can be used."""
    paths = folder / CERTIFICATE, folder / KEY
    if paths[1].is_file() and not paths[0].is_file():
        raise FileError(
            f"{paths[1]} exists without its certificate; put the certificate at {paths[0]}, or move "
            "the key away and use --make-certificates"
        )
    for path in paths:
        if not path.is_file():
            raise FileError(
                f"{path} does not exist; put the server's certificate and key there, or use "
                "--make-certificates for a trial"
            )
        _read(path)
    try:
        # with a password, OpenSSL does not ask for one on the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*paths, password="")
    except (ssl.SSLError, ValueError):
        raise FileError(
            f"{paths[0]} and {paths[1]} are not a PEM certificate and its key without a password; put "
            "both there again, or move both away and use --make-certificates"
        ) from None
    _refuse_open_to_others(paths[1])
    return paths


def make_secret(folder: Path) -> bytes:
    """Return the coordinator's secret from a folder, creating it first if necessary."""
    path = folder / SECRET
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, secrets.token_hex(32).encode(), private=True)
    return read_secret(folder)


def read_secret(folder: Path) -> bytes:
    """Read the coordinator's secret from a folder."""
    secret = _read(folder / SECRET).strip()
    if len(secret) < 32:
        raise FileError(f"{folder / SECRET} is not a secret written by `fedpca serve`")
    _refuse_open_to_others(folder / SECRET)
    return secret


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or not host.isascii():
        raise InputError(f"{host!r} is not an ASCII host name; use its DNS form, xn--...")
    return x509.DNSName(host)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _refuse_overwriting(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise FileError(f"{path} already exists and may be in use; move it away first")


def _refuse_open_to_others(path: Path) -> None:
    """Refuse a secret of this user that other users of the machine can read or change."""
    state = path.stat()
    mode = stat.S_IMODE(state.st_mode)
    if os.name == "posix" and state.st_uid == os.geteuid() and mode & 0o077:
        raise FileError(
            f"{path} is a secret that other users of this machine can use (mode {mode:o}); run chmod "
            f"600 {path}, or replace the secret if someone may have read it"
        )


def _write(path: Path, text: bytes, *, private: bool = False) -> None:
    with atomic.writing(path, private=private) as temporary:
        temporary.write_bytes(text)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None
