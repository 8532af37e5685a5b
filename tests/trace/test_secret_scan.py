"""What is found, wherever it stands and however its tokens are cut; and what is not."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.records import Call, CallId
from explorer.trace.secret_kinds import KINDS, RULES
from explorer.trace.secret_scan import RolloutScan, Scanned, Vocabulary
from explorer.trace.secret_text import Masker, masked_text, scan
from tests.trace.build import make_call, record

# Made up for these tests; put together here, so that no scanner of repositories trips.
A = "Q7f3Zk29LmTxB4wR8nVcY1dH"
KEYS = {
    "rollout_explorer_key": "rxk_" + A,
    "openai_key": "sk-" + "proj-" + A * 2,
    "anthropic_key": "sk-ant-" + "api03-" + A,
    "hugging_face_token": "hf" + "_" + A + "abcdefghij",
    "github_token": "gh" + "p_" + A + "abcdefghijkl",
    "gitlab_token": "glpat" + "-" + A,
    "slack_token": "xoxb" + "-1234567890-" + A,
    "aws_key": "AKIA" + "Z7QX2M4K9PLW3T5R",
    "google_key": "AIza" + "Sy" + A + "abcdefghi",
    "stripe_key": "sk_live" + "_" + A,
    "registry_token": "npm" + "_" + A + "abcdefghijkl",
    "service_key": "gsk" + "_" + A * 2,
    "json_web_token": ".".join(
        base64.urlsafe_b64encode(part).rstrip(b"=").decode()
        for part in (b'{"alg":"HS256","typ":"JWT"}', b'{"sub":"1234567890"}', A.encode())
    ),
    "private_key": (
        "-----BEGIN RSA PRIVATE " + "KEY-----\n" + (A * 3 + "\n") * 3
        + "-----END RSA PRIVATE " + "KEY-----"
    ),
}  # fmt: skip


def kinds(text: str) -> set[str]:
    return {hit.kind.name for hit in scan(text.encode())}


@pytest.mark.parametrize("kind", KEYS)
def test_every_kind_is_found_and_named(kind: str) -> None:
    (hit,) = scan(f"before {KEYS[kind]} after".encode())
    assert hit.kind.name == kind
    assert hit.value.decode() == KEYS[kind]


def test_every_rule_has_a_test() -> None:
    others = {"authorization", "url_password", "assigned_secret", "path"}
    assert {rule.kind.name for rule in RULES} == set(KEYS) | others


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"Authorization: Bearer {A}", A),
        (f'"authorization": "Basic {A}=="', A + "=="),
        (f"x-api-key: {A}", A),
        (f"curl -H 'Authorization: Bearer {A}'", A),
        ("postgres://app:tr0ub4dor@db.internal/x", "tr0ub4dor"),
        ('password = "hunter2isgood"', "hunter2isgood"),
        ("DB_PASSWORD=hunter2isgood", "hunter2isgood"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPx", "wJalrXUtnFEMI/K7MDENG/bPx"),
        ("'client_secret': 'Zk29LmTxB4wR'", "Zk29LmTxB4wR"),
        (json.dumps({"args": json.dumps({"api_key": "Zk29LmTxB4wR"})}), "Zk29LmTxB4wR"),
        (json.dumps(json.dumps(json.dumps({"token": "Zk29LmTxB4wR"}))), "Zk29LmTxB4wR"),
    ],
)
def test_what_a_word_gives_away(text: str, secret: str) -> None:
    assert secret in {hit.value.decode() for hit in scan(text.encode())}
    assert secret not in masked_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "token = tokenizer.eos_token_id",
        '{"token": "token_id:123456789", "logprob": -0.1}',
        '{"token": " the", "bytes": [32, 116]}',
        '{"max_tokens": 4096, "completion_tokens_details": null}',
        'api_key = os.environ["OPENAI_API_KEY"]',
        "password=get_password2()",
        "if self.password == other.password1:",
        '"eos_token": "<|endoftext|>"',
        "the task-abcdefghijklmnopqrstu and risk-1234567890abcdefghijkl",
        "sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "secret: keep it to yourself, please",
        "https://user:password@example.org/ and https://example.org:8080/@me",
        "-----BEGIN PRIVATE " + "KEY-----\n...\n-----END PRIVATE " + "KEY-----",
        "tokenizer_sha256=0123456789abcdef0123456789abcdef",
        "export TOKEN=$GITHUB_TOKEN PASSWORD=${DB_PASSWORD}",
    ],
)
def test_code_about_secrets_is_none(text: str) -> None:
    assert kinds(text) == set()
    assert masked_text(text) == text


def test_a_path_is_counted_and_blocks_nothing() -> None:
    text = "wrote /home/alice/notes.txt"
    assert kinds(text) == {"path"}
    assert not KINDS["path"].blocks
    assert masked_text(text) == text


def test_masking_keeps_every_other_character_in_its_place() -> None:
    secret = KEYS["openai_key"]
    text = f"é\n{secret} ü"
    assert masked_text(text) == text.replace(secret, "█" * len(secret))
    assert Masker().data(text.encode()) == text.replace(secret, "*" * len(secret)).encode()


@given(
    kind=st.sampled_from(sorted(KEYS)),
    before=st.text(max_size=30),
    after=st.text(max_size=30),
    levels=st.integers(0, 2),
)
def test_a_planted_key_is_hidden_at_every_level_of_escaping(
    kind: str, before: str, after: str, levels: int
) -> None:
    secret = KEYS[kind]
    text = f"{before} {secret} {after}"
    for _ in range(levels):
        text = json.dumps({"x": text})
    shown = Masker().data(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    for _ in range(levels):
        shown = json.loads(shown)["x"]
    assert secret not in shown
    assert A not in shown or A in before + after


@given(st.sampled_from(sorted(KEYS)), st.randoms(use_true_random=False))
def test_single_characters_written_as_escapes_hide_nothing(kind: str, random: object) -> None:
    secret = KEYS[kind]
    pick = random.random  # type: ignore[attr-defined]
    escaped = "".join(
        f"\\u{ord(letter):04x}" if pick() < 0.3 else json.dumps(letter)[1:-1]
        for letter in secret
    )
    body = f'{{"text": "see {escaped} there"}}'
    assert json.loads(body)["text"] == f"see {secret} there"
    masked = Masker().data(body.encode())
    shown = json.loads(masked)["text"]
    assert secret not in shown
    assert shown.startswith("see *")
    assert shown.endswith("* there")


def test_hostile_text_costs_time_in_proportion() -> None:
    pieces = [
        b"-----BEGIN PRIVATE KEY-----", b"eyJ", b"sk-", b"token_", b"password=", b"://a:",
        b"api_key\\\\\\\"", b"\\u005c", b"hf_", b"Bearer ", b"authorization",
    ]  # fmt: skip
    for piece in pieces:
        begun = time.process_time()
        scan(piece * (400_000 // len(piece)))
        assert time.process_time() - begun < 4, piece


# -- token ids


def vocabulary_of(pieces: list[bytes]) -> tuple[Vocabulary, list[int]]:
    """A vocabulary with exactly these tokens, and the ids that spell them."""
    names: dict[bytes, int] = {}
    ids = [names.setdefault(piece, len(names)) for piece in pieces]
    return {number: (piece, False) for piece, number in names.items()}, ids


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces, cut at the places."""
    edges = sorted({0, len(data), *(place for place in places if place < len(data))})
    return [data[start:end] for start, end in pairwise(edges)]


def scanned(calls: list[Call], vocabulary: Vocabulary) -> Scanned:
    made = RolloutScan(record(*calls), vocabulary)
    made.whole_record()
    return made.result()


def hidden_positions(found: Scanned, calls: list[Call]) -> dict[CallId, set[int]]:
    return {
        call.call_id: {
            place
            for mark in found.marks.get(call.call_id, ())
            for place in range(mark.start, mark.end)
        }
        for call in calls
    }


@given(
    kind=st.sampled_from(sorted(KEYS)),
    places=st.lists(st.integers(1, 900), max_size=60),
    border=st.integers(0, 1000),
)
def test_sec_02_a_key_is_found_in_ids_however_it_is_cut(
    kind: str, places: list[int], border: int
) -> None:
    secret = KEYS[kind].encode()
    text = b"the value is " + secret + b" and no more"
    vocabulary, ids = vocabulary_of(cut(text, places))
    split = border % (len(ids) + 1)
    one = make_call("c1", 0, ids[:split], ids[split:]) if split else None
    call = one or make_call("c1", 0, ids[:1], ids[1:])
    found = scanned([call], vocabulary)
    assert [each.kind for each in found.secrets] == [kind]
    places_hidden = hidden_positions(found, [call])[CallId("c1")]
    left = b"".join(
        vocabulary[token][0] for place, token in enumerate(ids) if place not in places_hidden
    )
    at, covered = 0, 0
    for place, token in enumerate(ids):
        size = len(vocabulary[token][0])
        inside = at < 13 + len(secret) and at + size > 13
        assert (place in places_hidden) == inside
        covered += inside
        at += size
    assert covered
    assert secret not in left


@given(st.integers(1, 80), st.integers(0, 3))
def test_a_key_that_one_call_begins_and_the_next_goes_on_with(at: int, gap: int) -> None:
    secret = KEYS["openai_key"].encode()
    text = b"x" * 700 + b" key: " + secret + b" end" * 5
    vocabulary, ids = vocabulary_of([bytes([byte]) for byte in text])
    border = 706 + at % len(secret)
    first = make_call("c1", 0, ids[: border - 3], ids[border - 3 : border])
    second = make_call(
        "c2", 1, ids[: border - gap] + ids[border - gap : -2], ids[-2:], parent=first,
        prefix_len=border - gap,
    )  # fmt: skip
    found = scanned([first, second], vocabulary)
    hidden = hidden_positions(found, [first, second])
    every = hidden[CallId("c1")] | hidden[CallId("c2")]
    assert set(range(706, 706 + len(secret))) <= every
    assert all(place < border for place in hidden[CallId("c1")])
    assert all(place >= border - gap for place in hidden[CallId("c2")])


def test_a_long_key_is_found_over_a_border_however_far_it_reaches() -> None:
    secret = KEYS["private_key"].replace(A, A * 12).encode()
    assert len(secret) > 900
    vocabulary, ids = vocabulary_of([bytes([byte]) for byte in b"k " + secret + b" z"])
    first = make_call("c1", 0, ids[:2], ids[2:700])
    second = make_call("c2", 1, ids[:-1], ids[-1:], parent=first)
    found = scanned([first, second], vocabulary)
    hidden = hidden_positions(found, [first, second])
    assert hidden[CallId("c1")] == set(range(2, 700))
    assert hidden[CallId("c2")] == set(range(700, 2 + len(secret)))


def test_a_secret_is_hidden_also_where_no_word_gives_it_away() -> None:
    text = b'password = "hunter2isgood" ... later: hunter2isgood.'
    vocabulary, ids = vocabulary_of([bytes([byte]) for byte in text])
    call = make_call("c1", 0, ids[:30], ids[30:])
    places = hidden_positions(scanned([call], vocabulary), [call])[CallId("c1")]
    assert bytes(byte for at, byte in enumerate(text) if at not in places) == (
        b'password = "" ... later: .'
    )


def test_unknown_ids_join_nothing_and_are_counted() -> None:
    secret = KEYS["hugging_face_token"].encode()
    vocabulary, ids = vocabulary_of([bytes([byte]) for byte in secret])
    middle = len(ids) // 2
    call = make_call("c1", 0, ids[:middle], [9999, *ids[middle:]])
    found = scanned([call], vocabulary)
    assert found.secrets == ()
    assert found.unknown == 1
    assert scanned([call], {**vocabulary, 9999: (b"", False)}).secrets


def test_the_parts_of_a_damaged_call_are_read_alone() -> None:
    secret = KEYS["github_token"].encode()
    vocabulary, ids = vocabulary_of([bytes([byte]) for byte in secret])
    lost = replace(make_call("c1", 0, ids, ids), prompt_len=1)
    assert [each.kind for each in scanned([lost], vocabulary).secrets] == ["github_token"]


def test_a_finding_tells_nothing_of_the_secret() -> None:
    secret = KEYS["anthropic_key"]
    rollout = record().rollout
    one = replace(record(), rollout=replace(rollout, metadata={"note": secret}))
    found = RolloutScan(one, {})
    found.whole_record()
    result = found.result()
    (finding,) = result.findings
    assert secret not in repr(finding) + repr(result) + repr(found) + repr(
        scan(secret.encode())
    )
    assert len(finding.preview) <= 4
    # The same secret in another rollout has another name: nobody can look one up.
    other = replace(one, rollout=replace(one.rollout, key_hash="another"))  # type: ignore[arg-type]
    again = RolloutScan(other, {})
    again.whole_record()
    assert again.result().findings[0].finding_id != finding.finding_id


def test_more_secrets_than_are_listed_still_block() -> None:
    words = " ".join(f"hf_{number:06d}{A}" for number in range(600))
    one = record()
    one = replace(one, rollout=replace(one.rollout, metadata={"note": words}))
    found = RolloutScan(one, {})
    found.whole_record()
    result = found.result()
    assert len(result.findings) == 401
    assert result.findings[-1].kind == "many"
    assert result.findings[-1].blocks
    assert len(result.ids) == 600
