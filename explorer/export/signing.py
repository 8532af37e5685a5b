"""Signatures over receipts: that this server issued them, and not whoever changed its files.

Owns: the two kinds of keys, reading them, signing and checking.
Must not know: what a receipt holds, where signatures are kept.

An Ed25519 key signs so that anybody with the public key can check; a shared secret (HMAC) so
that only those who have it can. A key is in a file of its own and is never written anywhere.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)

from explorer.errors import ConfigurationError

ED25519, HMAC = "ed25519", "hmac-sha256"
# Said before what is signed, so that no signature made for something else is one of these.
_CONTEXT = b"rollout-explorer-receipt-signature-v1"
_SHORTEST = 32
_LARGEST = 64 * 1024
_ID_LETTERS = 16
_NO_SECRET = (b"ssh-", b"sk-ssh-", b"ecdsa-", b"{", b"<")


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature over a receipt's digest; `key_id` names the key, `value` is hexadecimal."""

    algorithm: str
    key_id: str
    value: str


class CheckingKey(Protocol):
    """A key that signatures are checked with."""

    @property
    def algorithm(self) -> str:
        """Its kind."""

    @property
    def key_id(self) -> str:
        """Its name."""

    def fits(self, sha256: str, time_us: int, signature: Signature) -> bool:
        """Whether this key signed that digest as issued at that time."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The public half of an Ed25519 key."""

    key: Ed25519PublicKey = field(repr=False)
    algorithm: str = ED25519

    @property
    def key_id(self) -> str:
        """From the key itself."""
        return _id_of(self.key.public_bytes(Encoding.Raw, PublicFormat.Raw))

    @property
    def pem(self) -> str:
        """As others need it to check."""
        return self.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def fits(self, sha256: str, time_us: int, signature: Signature) -> bool:
        """As `CheckingKey`."""
        if signature.algorithm != ED25519:
            return False
        try:
            self.key.verify(bytes.fromhex(signature.value), _signed(sha256, time_us))
        except (InvalidSignature, ValueError, OverflowError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """An Ed25519 key that signs."""

    key: Ed25519PrivateKey = field(repr=False)
    algorithm: str = ED25519

    @property
    def public(self) -> PublicKey:
        """Its public half."""
        return PublicKey(self.key.public_key())

    @property
    def key_id(self) -> str:
        """That of its public half."""
        return self.public.key_id

    def sign(self, sha256: str, time_us: int) -> Signature:
        """The signature over a digest; the same each time."""
        return Signature(ED25519, self.key_id, self.key.sign(_signed(sha256, time_us)).hex())

    def fits(self, sha256: str, time_us: int, signature: Signature) -> bool:
        """As `CheckingKey`."""
        return self.public.fits(sha256, time_us, signature)


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A shared secret."""

    secret: bytes = field(repr=False)
    algorithm: str = HMAC

    @property
    def key_id(self) -> str:
        """Tells two secrets apart and tells nothing of either."""
        return _id_of(hmac.new(self.secret, b"key id", hashlib.sha256).digest())

    def sign(self, sha256: str, time_us: int) -> Signature:
        """As that of `PrivateKey`."""
        value = hmac.new(self.secret, _signed(sha256, time_us), hashlib.sha256).hexdigest()
        return Signature(HMAC, self.key_id, value)

    def fits(self, sha256: str, time_us: int, signature: Signature) -> bool:
        """As `CheckingKey`."""
        if signature.algorithm != HMAC:
            return False
        try:
            made = self.sign(sha256, time_us).value.encode()
        except (ValueError, OverflowError):  # no digest, or no time
            return False
        return hmac.compare_digest(made, signature.value.encode("utf-8", "replace"))


SigningKey = PrivateKey | SecretKey


def read_signing_key(path: Path) -> SigningKey:
    """The key that a server signs with.

    Raises:
        ConfigurationError: says what the file must hold.
    """
    key = read_key(path)
    if isinstance(key, PublicKey):
        raise ConfigurationError(
            f"{path} holds a public key, which cannot sign; give the private one"
        )
    return key


def read_key(path: Path) -> PublicKey | SigningKey:
    """A key of any kind: PEM of an Ed25519 key, or a shared secret.

    Raises:
        ConfigurationError: says what the file must hold.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    if b"-----BEGIN" in raw:
        return _pem(path, raw)
    secret = raw.strip()
    if len(secret) < _SHORTEST:
        raise ConfigurationError(
            f"{path} holds no key: an Ed25519 key in PEM (`openssl genpkey -algorithm "
            f"ed25519`), or a secret of at least {_SHORTEST} bytes (`openssl rand -hex 32`)"
        )
    if _other_form(secret):
        raise ConfigurationError(
            f"{path} holds a key, or something else that others may have, in a form that is "
            "not read; taken for a secret, anybody could sign with it. Give an Ed25519 key in "
            "PEM (`openssl pkey -inform der`), or a secret (`openssl rand -hex 32`)"
        )
    return SecretKey(secret)


def _other_form(raw: bytes) -> bool:
    """Whether this is no secret but a key in DER, base64, SSH's form or JSON, or a page."""
    plain = raw.replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe")
    if b"-----" in plain or (plain.isascii() and plain.startswith(_NO_SECRET)):
        return True
    body = b"".join(plain.split())
    try:
        decoded = base64.b64decode(body, validate=True)
    except ValueError:
        decoded = b""
    return _der(raw) or _der(decoded)


def _der(raw: bytes) -> bool:
    for load in (load_der_public_key, lambda data: load_der_private_key(data, None)):
        with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
            load(raw)
            return True
    return False


def _pem(path: Path, raw: bytes) -> PublicKey | PrivateKey:
    try:
        if b"PRIVATE KEY" in raw:
            private = load_pem_private_key(raw, password=None)
            if isinstance(private, Ed25519PrivateKey):
                return PrivateKey(private)
        else:
            public = load_pem_public_key(raw)
            if isinstance(public, Ed25519PublicKey):
                return PublicKey(public)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"{path} holds no key that can be read: {error}") from error
    raise ConfigurationError(f"{path} holds a key of another kind; Ed25519 is wanted")


def _signed(sha256: str, time_us: int) -> bytes:
    # The time goes in, so that a receipt that is issued again for another record shows.
    return _CONTEXT + bytes.fromhex(sha256) + time_us.to_bytes(8, "big", signed=True)


def _id_of(material: bytes) -> str:
    return hashlib.sha256(material).hexdigest()[:_ID_LETTERS]
