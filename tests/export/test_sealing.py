"""Receipts are issued once, signed, and compared with what the record gives later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from explorer.errors import ConfigurationError
from explorer.export.sealing import Custody, Sealing, Signed, checked, compared
from explorer.export.signing import (
    PrivateKey,
    PublicKey,
    SecretKey,
    Signature,
    read_key,
    read_signing_key,
)
from explorer.records import EventKind, RolloutEvent
from explorer.store.duckdb_store import DuckDBStore
from explorer.store.seals import Seal
from tests.export.datasets import FORKED, ODD, OPEN, PLAIN
from tests.export.test_dataset_files import in_store

DIGEST = "ab" * 32


def pem(key: Any) -> bytes:
    made: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made


@pytest.fixture(params=["ed25519", "hmac"])
def key(request: pytest.FixtureRequest, tmp_path: Path) -> PrivateKey | SecretKey:
    raw = pem(Ed25519PrivateKey.generate()) if request.param == "ed25519" else b"s" * 32
    (tmp_path / "key").write_bytes(raw)
    return read_signing_key(tmp_path / "key")


async def custody(store: DuckDBStore, name: Any, key: Any = None) -> Custody:
    found = await Sealing(store, lambda: 77, key).issue(name)
    assert found is not None
    return found


def test_a_signature_is_of_one_key_and_one_digest(key: PrivateKey | SecretKey) -> None:
    signature = key.sign(DIGEST, 5)
    assert signature == key.sign(DIGEST, 5)
    assert key.fits(DIGEST, 5, signature)
    assert not key.fits("cd" * 32, 5, signature)
    assert not key.fits(DIGEST, 6, signature)
    # A changed store may hold anything.
    assert not key.fits("no digest", 5, signature)
    assert not key.fits(DIGEST, 2**70, signature)
    assert not key.fits(DIGEST, 5, replace(signature, value="00" * 64))
    assert not key.fits(DIGEST, 5, replace(signature, value="no hex"))
    assert not key.fits(DIGEST, 5, replace(signature, algorithm="none"))
    other = SecretKey(b"t" * 32) if isinstance(key, SecretKey) else None
    other = other or PrivateKey(Ed25519PrivateKey.generate())  # type: ignore[assignment]
    assert other is not None
    assert not other.fits(DIGEST, 5, signature)
    assert other.key_id != key.key_id
    assert "key=" not in repr(key)
    assert "ssss" not in repr(key)


def test_the_public_half_checks_and_does_not_sign(tmp_path: Path) -> None:
    private = PrivateKey(Ed25519PrivateKey.generate())
    (tmp_path / "public.pem").write_text(private.public.pem)
    public = read_key(tmp_path / "public.pem")
    assert isinstance(public, PublicKey)
    assert public.key_id == private.key_id
    assert public.fits(DIGEST, 5, private.sign(DIGEST, 5))
    with pytest.raises(ConfigurationError, match="cannot sign"):
        read_signing_key(tmp_path / "public.pem")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"short", "holds no key"),
        (b"", "holds no key"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "can be read"),
        (b"-----BEGIN NOTHING-----\n", "can be read"),
        (pem(X25519PrivateKey.generate()), "another kind"),
        (None, "cannot be read"),
    ],
)
def test_a_file_without_a_key_is_said(raw: bytes | None, words: str, tmp_path: Path) -> None:
    if raw is not None:
        (tmp_path / "key").write_bytes(raw)
    with pytest.raises(ConfigurationError, match=words):
        read_signing_key(tmp_path / "key")


def test_receipts_are_issued_once_and_the_next_with_a_later_reward(
    tmp_path: Path, key: PrivateKey | SecretKey
) -> None:
    async def work(store: DuckDBStore) -> None:
        assert set(store.seals_due()) == {FORKED, PLAIN, ODD}
        assert (await custody(store, OPEN, key)).receipts == ()
        (first,) = (await custody(store, PLAIN, key)).receipts
        assert first.agrees
        assert first.signed is Signed.GOOD
        assert (await custody(store, PLAIN, key)).receipts == (first,)
        assert set(store.seals_due()) == {FORKED, ODD}
        await store.add_event(RolloutEvent(PLAIN, -1, 900, EventKind.REWARD, reward=0.25))
        assert PLAIN in store.seals_due()
        one, two = (await custody(store, PLAIN, key)).receipts
        assert one == first
        assert two.now is not None
        assert (two.number, two.now.receipt.reward, two.agrees) == (2, 0.25, True)
        # Said again without a reward: nothing new is due.
        await store.add_event(RolloutEvent(PLAIN, -1, 901, EventKind.REWARD, ok=True))
        assert PLAIN not in store.seals_due()
        await store.add_event(RolloutEvent(ODD, -1, 902, EventKind.DELETED))
        assert set(store.seals_due()) == {FORKED}

    in_store(tmp_path / "s.duckdb", work)


def _rows(store: DuckDBStore, sql: str, values: list[Any]) -> None:
    store._database.writer.execute(sql, values)


def test_a_record_that_was_changed_later_no_longer_agrees(tmp_path: Path) -> None:
    key = SecretKey(b"k" * 32)

    async def work(store: DuckDBStore) -> None:
        (sealed,) = (await custody(store, PLAIN, key)).receipts
        assert sealed.agrees
        # Somebody with the file gives the rollout another reward than it earned.
        _rows(
            store,
            "UPDATE rollout_event SET reward = 1 WHERE rollout_id = ? AND kind = 'closed'",
            [PLAIN],
        )
        (found,) = (await custody(store, PLAIN, key)).receipts
        assert found.seal == sealed.seal
        assert not found.agrees
        assert found.signed is Signed.GOOD
        # … and makes the digest fit, consistently: no key, no signature.
        assert found.now is not None
        _rows(
            store,
            "UPDATE receipt SET sha256 = ? WHERE rollout_id = ?",
            [found.now.sha256, PLAIN],
        )
        (forged,) = (await custody(store, PLAIN, key)).receipts
        assert forged.signed is Signed.BAD
        assert not forged.agrees
        # Without the signature it says that there is none.
        _rows(store, "UPDATE receipt SET signature = NULL WHERE rollout_id = ?", [PLAIN])
        (bare,) = (await custody(store, PLAIN, key)).receipts
        assert bare.signed is Signed.MISSING

    in_store(tmp_path / "s.duckdb", work)


def test_a_receipt_that_the_record_does_not_give_is_told(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await store.add_seal(Seal(PLAIN, 7, 1, DIGEST))
        found = (await custody(store, PLAIN)).receipts
        assert [(each.number, each.agrees) for each in found] == [(1, True), (7, False)]
        assert found[1].now is None

    in_store(tmp_path / "s.duckdb", work)


@pytest.mark.parametrize(
    ("seal", "said"),
    [
        (lambda key: None, Signed.NONE),
        (lambda key: Seal(PLAIN, 1, 1, DIGEST), Signed.MISSING),
        (lambda key: _sealed(key.sign(DIGEST, 5)), Signed.GOOD),
        (lambda key: _sealed(replace(key.sign(DIGEST, 5), value="00" * 32)), Signed.BAD),
        (lambda key: _sealed(replace(key.sign(DIGEST, 5), key_id="other")), Signed.UNKNOWN),
    ],
)
def test_what_a_signature_says(seal: Callable[[Any], Seal | None], said: Signed) -> None:
    key = SecretKey(b"k" * 32)
    assert checked(seal(key), key) is said
    if said is Signed.GOOD:
        assert checked(seal(key), None) is Signed.UNKNOWN


def _sealed(signature: Signature) -> Seal:
    return Seal(PLAIN, 1, 5, DIGEST, signature.algorithm, signature.key_id, signature.value)


def test_nothing_is_issued_into_a_store_that_is_only_read(tmp_path: Path) -> None:
    from explorer.store.duckdb_store import StoreOptions

    async def nothing(store: DuckDBStore) -> None:
        """It is filled."""

    in_store(tmp_path / "s.duckdb", nothing)

    async def work() -> None:
        store = DuckDBStore(
            tmp_path / "s.duckdb", StoreOptions(min_free_bytes=0, read_only=True)
        )
        try:
            (found,) = (await custody(store, PLAIN)).receipts
            assert found.seal is None
            assert not found.agrees
            assert found.now is not None
        finally:
            await store.close()

    import asyncio

    asyncio.run(work())
    assert compared((), (), None) == ()


def test_two_who_issue_at_once_issue_one(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        sealing = Sealing(store, lambda: 77, SecretKey(b"k" * 32))
        both = await asyncio.gather(*(sealing.issue(FORKED) for _ in range(8)))
        assert len({each.receipts for each in both if each is not None}) == 1
        assert len(store.seals(FORKED)) == 1
        assert store.health().quarantined == 0

    in_store(tmp_path / "s.duckdb", work)
