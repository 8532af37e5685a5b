"""Keys are found wherever a harness may put them, and kept nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from explorer.capture.credentials import capture_keys, keepable_headers, take_from_path
from explorer.capture.ids import hash_key, is_id, new_call_id, new_capture_key, uuid7


def scope(
    path: str = "/v1/x", query: str = "", headers: list[tuple[bytes, bytes]] | None = None
) -> dict[str, Any]:
    return {
        "type": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers or [],
    }


@pytest.mark.parametrize(
    ("headers", "keys"),
    [
        ([(b"authorization", b"Bearer K")], ["K"]),
        ([(b"authorization", b"bearer  K ")], ["K"]),
        ([(b"authorization", b"Basic K")], []),
        ([(b"x-api-key", b"K")], ["K"]),
        ([(b"x-goog-api-key", b"K")], ["K"]),
        ([(b"authorization", b"Bearer other"), (b"x-api-key", b"K")], ["K", "other"]),
    ],
)
def test_keys_in_headers(headers: list[tuple[bytes, bytes]], keys: list[str]) -> None:
    assert capture_keys(take_from_path(scope(headers=headers))) == keys


def test_a_key_in_the_path_leaves_it() -> None:
    taken = take_from_path(scope("/k/SECRET/v1/chat/completions"))
    assert taken["path"] == "/v1/chat/completions"
    assert taken["raw_path"] == b"/v1/chat/completions"
    assert capture_keys(taken) == ["SECRET"]
    assert "SECRET" not in repr({k: v for k, v in taken.items() if "capture_key" not in k})


@pytest.mark.parametrize("path", ["//k/rxk_1/v1/models", "/k/rxk_1//v1/models"])
def test_leak_01_a_key_leaves_a_path_with_doubled_slashes_too(path: str) -> None:
    scope = take_from_path({"path": path, "raw_path": path.encode(), "query_string": b""})
    assert (scope["path"], scope["raw_path"]) == ("/v1/models", b"/v1/models")
    assert capture_keys(scope | {"headers": []}) == ["rxk_1"]


def test_a_key_in_the_query_leaves_it() -> None:
    taken = take_from_path(scope("/v1beta/m", "key=SECRET&alt=sse&api_key=OTHER"))
    assert taken["query_string"] == b"alt=sse"
    assert capture_keys(taken) == ["SECRET"]


def test_a_bare_key_path_is_the_root() -> None:
    assert take_from_path(scope("/k/SECRET"))["path"] == "/"
    assert take_from_path(scope("/k/SECRET/"))["path"] == "/"


def test_other_paths_are_left_alone() -> None:
    plain = scope("/rollouts", "q=x")
    assert take_from_path(plain) is plain


def test_leak_01_credential_headers_are_never_kept() -> None:
    headers = [
        (b"authorization", b"Bearer K"),
        (b"x-api-key", b"K"),
        (b"x-goog-api-key", b"K"),
        (b"api-key", b"K"),
        (b"cookie", b"K"),
        (b"proxy-authorization", b"K"),
        (b"user-agent", b"pi/1"),
    ]
    assert keepable_headers(headers) == (("user-agent", "pi/1"),)


def test_keys_are_long_random_and_hashed() -> None:
    one, two = new_capture_key(), new_capture_key()
    assert one != two
    assert len(one) >= 43
    assert len(hash_key(one)) == 64
    assert one not in hash_key(one)


def test_ids_are_ordered_by_time_and_recognised() -> None:
    made = [uuid7(1_800_000_000_000_000 + n * 1_000) for n in range(50)]
    assert made == sorted(made)
    assert all(is_id(text) for text in made)
    assert made[0][14] == "7"
    assert is_id(new_call_id(1))


@pytest.mark.parametrize(
    "hostile", ["../../etc/passwd", "..%2f..%2fx", "a/b", "CON", "x\x00y", ".", "", "A" * 36]
)
def test_path_01_hostile_ids_are_no_ids(hostile: str) -> None:
    assert not is_id(hostile)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"referer", b"http://127.0.0.1/k/KEY/v1/chat"),
        (b"x-original-uri", b"/v1/models?key=KEY"),
        (b"user-agent", b"harness KEY"),
    ],
)
def test_leak_01_a_key_in_the_value_of_another_header_is_cut(name: bytes, value: bytes) -> None:
    key = new_capture_key().encode()
    kept = keepable_headers([(name, value.replace(b"KEY", key))])
    assert key.decode()[9:] not in str(kept)
    assert kept[0][0] == name.decode()


@pytest.mark.parametrize(
    "name",
    [
        b"x-auth-token",
        b"openai-api-key",
        b"x-litellm-api-key",
        b"x-vault-token",
        b"x-api-secret",
    ],
)
def test_leak_01_headers_that_are_credentials_by_name_are_not_kept(name: bytes) -> None:
    assert keepable_headers([(name, b"s3cret"), (b"x-session-id", b"1")]) == (
        ("x-session-id", "1"),
    )
