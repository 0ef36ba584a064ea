"""Create and read the files that prove identity: keys, certificates, and the coordinator's secret.

A site creates a key pair and sends the public key to the coordinator. The server admits only sites
whose public keys it was given. The server presents a certificate, and the sites use this certificate to
verify the server. Anyone who holds the coordinator's secret can ask the sites questions. Anyone who has
a public key can check that a signature was made with the matching private key. A site signs its
answers, and the coordinator signs its plans.

::

    north.key           a site's private key; never leaves it      (mode 600)
    north.pub           the matching public key, with the site's name
    ca.pem              the authority that vouches for the server
    server.pem          the server's certificate
    server.key          the server's private key                   (mode 600)
    coordinator.secret  lets a fit use the server                  (mode 600)
    coordinator.key     the coordinator's private signing key      (mode 600)
    coordinator.pub     the matching public key, for the sites

A secret file that other users of the machine can read is refused, as in ssh. The file's mode is not
corrected quietly, because only a person can find out whether someone has read the secret.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import re
import secrets
import socket
import ssl
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.utils import (
        decode_dss_signature,
        encode_dss_signature,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:  # pragma: no cover - the tests have it
    from fedpca.errors import InputError as _InputError

    raise _InputError(
        "keys and certificates require an extra; install it with: pip install 'fedpca[flower]'"
    ) from error

from fedpca.errors import FileError, InputError, LedgerError
from fedpca.protocol.proof import statement
from fedpca.storage import atomic
from fedpca.storage.regular import refuse_special

CA, CERTIFICATE, KEY, SECRET = "ca.pem", "server.pem", "server.key", "coordinator.secret"
COORDINATOR_KEY, COORDINATOR_PUBLIC = "coordinator.key", "coordinator.pub"
PINNED_SITES = "sites"  # folder with the sites' public keys that a coordinator has checked itself
_CURVE = ec.SECP384R1()
_ED25519_BYTES = 32  # of a public key
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

PrivateKey = ec.EllipticCurvePrivateKey | Ed25519PrivateKey
PublicKey = ec.EllipticCurvePublicKey | Ed25519PublicKey


def make_site_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a new key pair for a site, and return the private and public key paths."""
    if not re.fullmatch(r"\w[\w.-]{0,63}", name) or name.isdigit():
        raise InputError(
            f"{name!r} is not a valid site name; use at most 64 letters, digits, and ._-, begin with a "
            "letter or digit, and do not use digits alone"
        )
    private_path, public_path = folder / f"{name}.key", folder / f"{name}.pub"
    _refuse_overwriting(private_path, public_path)
    key = ec.generate_private_key(_CURVE)
    _write(private_path, _private_bytes(key), private=True)
    _write(public_path, _public_line(key.public_key(), name))
    return private_path, public_path


def read_site_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a site's private key."""
    try:
        key = serialization.load_ssh_private_key(_read(path), None)
    except _MALFORMED:
        raise FileError(
            f"{path} is not a key written by `fedpca site-key`; specify the site's NAME.key"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FileError(f"{path} is the wrong type of key; create one with `fedpca site-key`")
    _refuse_open_to_others(path)
    return key


def read_public_keys(paths: Iterable[Path]) -> dict[str, ec.EllipticCurvePublicKey]:
    """Read the sites' public keys, and return them in a dict by the site name in each file."""
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    for path in paths:
        text = _read(path)
        try:
            key = serialization.load_ssh_public_key(text)
        except _MALFORMED:
            key = None
        words = text.split()
        if not isinstance(key, ec.EllipticCurvePublicKey) or len(words) != 3:
            raise FileError(
                f"{path} is not a public key written by `fedpca site-key`; ask the site for NAME.pub"
            )
        name = words[2].decode(errors="replace")
        if name in keys:
            raise InputError(f"{path} is a second key for {name!r}; give only one key per site")
        if key in keys.values():
            raise InputError(
                f"{path} has the same key as a different site; create a new key for one"
            )
        keys[name] = key
    if not keys:
        raise InputError(
            "a server needs its sites' public keys; pass them, as in north.pub south.pub"
        )
    return keys


def pinned_site_keys(folder: Path) -> dict[str, ec.EllipticCurvePublicKey]:
    """Read the public keys of sites that a coordinator keeps in its folder; there may be none."""
    paths = sorted((folder / PINNED_SITES).glob("*.pub"))
    return read_public_keys(paths) if paths else {}


def make_coordinator_key(folder: Path) -> Ed25519PrivateKey:
    """Return the coordinator's signing key from a folder, creating both of its files if necessary."""
    private_path, public_path = folder / COORDINATOR_KEY, folder / COORDINATOR_PUBLIC
    if not private_path.exists():
        if public_path.exists():
            raise FileError(
                f"{public_path} exists without its key, and sites may rely on it; put the key back "
                f"at {private_path}, or move {public_path} away and give the sites the new public key"
            )
        folder.mkdir(parents=True, exist_ok=True)
        _write(private_path, _private_bytes(Ed25519PrivateKey.generate()), private=True)
    key = read_coordinator_key(folder)
    if not public_path.exists():
        _write(public_path, _public_line(key.public_key(), "coordinator"))
    if read_coordinator_public(public_path) != key.public_key():
        raise FileError(
            f"{public_path} does not belong to {private_path}; move {public_path} away, and a new one "
            "will be written"
        )
    return key


def read_coordinator_key(folder: Path) -> Ed25519PrivateKey:
    """Read the coordinator's private signing key from a folder."""
    path = folder / COORDINATOR_KEY
    try:
        key = serialization.load_ssh_private_key(_read(path), None)
    except _MALFORMED:
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise FileError(
            f"{path} is not a coordinator's key written by `fedpca serve`; restore it from a backup"
        )
    _refuse_open_to_others(path)
    return key


def read_coordinator_public(path: Path) -> Ed25519PublicKey:
    """Read the coordinator's public key from a file."""
    try:
        key = serialization.load_ssh_public_key(_read(path))
    except _MALFORMED:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise FileError(
            f"{path} is not a coordinator's public key; ask the coordinator for the coordinator.pub "
            "that `fedpca serve` wrote"
        )
    return key


def public_key_in(path: Path) -> PublicKey:
    """Return the public key from a key file, whether the file is private or public."""
    text = _read(path)
    key: object = None
    try:
        if text.startswith(b"-----BEGIN"):
            private = serialization.load_ssh_private_key(text, None)
            key = private.public_key()
        else:
            key = serialization.load_ssh_public_key(text)
    except _MALFORMED:
        pass
    if not isinstance(key, PublicKey):
        raise FileError(
            f"{path} is not a key written by `fedpca site-key` or `fedpca serve`; specify a key file"
        )
    return key


def public_key_from_pem(text: bytes) -> PublicKey:
    """Decode a public key that Flower's server sent."""
    try:
        key = serialization.load_pem_public_key(text)
    except _MALFORMED:
        key = None
    if not isinstance(key, PublicKey):
        raise FileError(
            "the server's public key for this site cannot be read; start the server with NAME.pub again"
        )
    return key


def fingerprint(public_key: PublicKey) -> str:
    """Return 64 hexadecimal digits that identify a public key: the SHA-256 of its DER bytes."""
    return hashlib.sha256(to_der(public_key)).hexdigest()


def to_der(public_key: PublicKey) -> bytes:
    """Encode a public key in DER format."""
    return public_key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def verify_der(der: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether the key in these DER bytes signed the data; return False for malformed bytes."""
    try:
        key = serialization.load_der_public_key(der)
    except _MALFORMED:
        return False
    if not isinstance(key, Ed25519PublicKey | ec.EllipticCurvePublicKey):
        return False
    return verify_signature(key, signature, data)


def sign(key: PrivateKey, data: bytes) -> bytes:
    """Sign data; the signature always has 64 bytes (Ed25519) or 96 bytes (P-384)."""
    if isinstance(key, Ed25519PrivateKey):
        return key.sign(data)
    size = _coordinate_bytes(key)
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA384())))
    return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def verify_signature(public_key: PublicKey, signature: bytes, data: bytes) -> bool:
    """Return whether the holder of this public key's private key signed the data."""
    try:
        if isinstance(public_key, Ed25519PublicKey):
            public_key.verify(signature, data)
            return True
        size = _coordinate_bytes(public_key)
        if len(signature) != 2 * size:
            return False
        r, s = (int.from_bytes(half, "big") for half in (signature[:size], signature[size:]))
        public_key.verify(encode_dss_signature(r, s), data, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def seal(key: Ed25519PrivateKey, data: bytes) -> bytes:
    """Sign data; return the public key and the signature, from which `signer_of` finds the signer."""
    return key.public_key().public_bytes_raw() + sign(key, data)


def signer_of(sealed: bytes, data: bytes) -> str:
    """Return the fingerprint of the key that signed data, or "" if the signature is invalid."""
    try:
        key = Ed25519PublicKey.from_public_bytes(sealed[:_ED25519_BYTES])
    except _MALFORMED:
        return ""
    return fingerprint(key) if verify_signature(key, sealed[_ED25519_BYTES:], data) else ""


def refuse_unproven(proof: Mapping[str, str], public_key: PublicKey) -> None:
    """Refuse a site's entry in `RunRecord.proofs` if the holder of this key did not sign it."""
    if fingerprint(public_key) != proof["key"]:
        raise LedgerError(
            f"the run record holds an answer signed with the key {proof['key']}, not with "
            f"{fingerprint(public_key)}; use the key of the site that gave this answer"
        )
    signed = statement(proof["digest_in"], proof["commitment"], proof["head"])
    if not verify_signature(public_key, bytes.fromhex(proof["signature"]), signed):
        raise LedgerError(
            "the signature in the run record was not made with this key; do not trust the record"
        )


def make_certificates(folder: Path, hosts: Sequence[str] = ()) -> None:
    """Write a server certificate for these host names, and the authority that vouches for it.

    The authority's own key is discarded, so nothing else can be signed with it. If no host names are
    given, the certificate covers localhost and this machine.
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
        # if a password is given, OpenSSL does not ask for one on the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*paths, password="")
    except (ssl.SSLError, ValueError):
        raise FileError(
            f"{paths[0]} and {paths[1]} are not a PEM certificate and its key without a password; "
            "replace them, or move both away and use --make-certificates"
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
        raise FileError(
            f"{folder / SECRET} is not a secret written by `fedpca serve`; copy it from the server, or "
            "delete it there and start `fedpca serve` again"
        )
    _refuse_open_to_others(folder / SECRET)
    return secret


def _private_bytes(key: PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )


def _public_line(key: PublicKey, name: str) -> bytes:
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_bytes(*form) + f" {name}\n".encode()


def _coordinate_bytes(key: ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) -> int:
    return (key.curve.key_size + 7) // 8


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
    """Refuse a secret file of this user if other users of the machine can read or change it."""
    state = path.stat()
    mode = stat.S_IMODE(state.st_mode)
    if os.name == "posix" and state.st_uid == os.geteuid() and mode & 0o077:
        raise FileError(
            f"{path} holds a secret, but other users of this machine can read or change it (mode "
            f"{mode:o}); run chmod 600 {path}; if someone may have read the secret, replace it"
        )


def _write(path: Path, text: bytes, *, private: bool = False) -> None:
    with atomic.writing(path, private=private) as temporary:
        temporary.write_bytes(text)


def _read(path: Path) -> bytes:
    refuse_special(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(
            f"{path} cannot be read: {error.strerror}; check the path and its permissions"
        ) from None
