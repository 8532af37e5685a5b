"""Nothing that everybody may know is ever taken for a shared secret."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from explorer.errors import ConfigurationError
from explorer.export.signing import read_key, read_signing_key

_KEY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
_DER = _KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
_PEM = _KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
_SSH = _KEY.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
_X = base64.urlsafe_b64encode(_DER[-32:]).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "raw",
    [
        _DER,
        base64.b64encode(_DER),
        _SSH,
        _SSH + b" somebody@somewhere\n",
        _PEM.decode().encode("utf-16"),
        _PEM.replace(b"-----BEGIN PUBLIC KEY-----\n", b""),
        b"\xef\xbb\xbf" + base64.b64encode(_DER),
        json.dumps({"kty": "OKP", "crv": "Ed25519", "x": _X}).encode(),
        _KEY.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        b"<!DOCTYPE html><html><body>not found, please sign in</body></html>",
    ],
    ids=[
        "der",
        "base64",
        "ssh",
        "ssh_named",
        "utf16",
        "headless",
        "bom",
        "jwk",
        "private",
        "page",
    ],
)
def test_a_key_in_another_form_is_no_secret(tmp_path: Path, raw: bytes) -> None:
    """Whoever has the public key could sign with it."""
    (tmp_path / "key").write_bytes(raw)
    for read in (read_key, read_signing_key):
        with pytest.raises(ConfigurationError):
            read(tmp_path / "key")


def test_a_secret_of_any_letters_or_bytes_is_one(tmp_path: Path) -> None:
    for raw in (
        b"ab" * 32 + b"\n",
        bytes(range(200, 240)),
        b"correct horse battery staple 123456",
    ):
        (tmp_path / "key").write_bytes(raw)
        key = read_signing_key(tmp_path / "key")
        assert key.algorithm == "hmac-sha256"
        assert key.fits("00" * 32, 1, key.sign("00" * 32, 1))
