"""The drift check: prompts that a real vLLM read, the built-in engine, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from explorer.engine.rerender import Arguments, BuiltIn, Named, forms
from explorer.engine.scripted import ScriptedEngine
from explorer.engine.tiny import TinyEngine
from explorer.errors import ConfigurationError
from explorer.export.drift import CallDrift, DriftChecker, DriftResult
from explorer.export.judged import Judged
from explorer.records import Body, BodyKind, Call, CallId, RolloutId, TokenizerId
from explorer.trace.sequences import Sequences
from explorer.trace.verdict import judge
from tests.live import Live, serving
from tests.trace.build import make_call, record

DATA = Path(__file__).parents[1] / "data"
MODEL = DATA / "tiny_model"
RECORDED = sorted(
    path.name for path in (DATA / "vllm").iterdir() if (path / "response.json").is_file()
)


def recorded(case: str) -> tuple[dict[str, Any], list[int]]:
    """What a real vLLM was sent, and the ids of the prompt that it read."""
    folder = DATA / "vllm" / case
    answer = json.loads((folder / "response.json").read_text())
    return json.loads((folder / "request.json").read_text()), answer["prompt_token_ids"]


def judged(*calls: Call, **rollout: Any) -> Judged:
    made = record(*calls)
    facts = {"engine_kind": "vllm"} | rollout
    made = replace(made, rollout=replace(made.rollout, **facts))
    return Judged(made, judge(made), Sequences(made.calls))


def check(
    body: Any, prompt: list[int], tokenizer: str | None = str(MODEL), **rollout: Any
) -> CallDrift:
    """One call that was sent `body` and read `prompt`."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)

    def bodies(call_id: CallId) -> list[Body]:
        return [Body(call_id, RolloutId("r1"), BodyKind.SUBMITTED, data)]

    call = make_call("a", 1, prompt, [5])
    found = DriftChecker(tokenizer, "http://127.0.0.1:1", bodies).check(
        judged(call, **rollout), 0, 10
    )
    (only,) = found.calls
    return only


@pytest.mark.parametrize("case", RECORDED)
def test_what_vllm_read_is_what_is_rendered_here(case: str) -> None:
    body, prompt = recorded(case)
    found = check(body, prompt)
    assert found.result is DriftResult.MATCH, found


def with_call(arguments: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "found"},
        ]
    }


@pytest.mark.parametrize("sent", ['{"q":1}', {"q": 1}])
def test_mask_06_arguments_as_object_and_as_text_are_both_tried_and_named(sent: Any) -> None:
    """The same history, handed to the template in two forms: other tokens."""
    named = Named(str(MODEL))
    body = with_call(sent)
    as_object = list(named.ids(forms(body)[Arguments.OBJECT]))
    found = check(body, as_object, chat_template_sha256=named.template_sha256)
    results = {form.arguments: form.result for form in found.forms}
    assert found.result is DriftResult.MATCH
    assert results[Arguments.OBJECT] is DriftResult.MATCH
    if isinstance(sent, str):
        # `{"q":1}` is not how the template writes an object.
        assert results[Arguments.STRING] is DriftResult.MISMATCH
        as_text = list(named.ids(forms(body)[Arguments.STRING]))
        other = {form.arguments: form.result for form in check(body, as_text).forms}
        assert other == {
            Arguments.OBJECT: DriftResult.MISMATCH,
            Arguments.STRING: DriftResult.MATCH,
        }


def test_mask_06_the_template_is_named_beside_the_served_one() -> None:
    named = Named(str(MODEL))
    body, prompt = recorded("chat_unary_ids_logprobs")
    checker = DriftChecker(
        str(MODEL),
        "",
        lambda call_id: [
            Body(call_id, RolloutId("r1"), BodyKind.SUBMITTED, orjson.dumps(body))
        ],
    )
    call = make_call("a", 1, prompt, [5])
    for served, same in ((named.template_sha256, True), ("0" * 64, False), (None, None)):
        found = checker.check(judged(call, chat_template_sha256=served), 0, 5)
        assert (found.template_sha256, found.same_template) == (named.template_sha256, same)
        assert found.served_template_sha256 == served


def test_the_first_difference_is_named_and_both_sides_are_decoded() -> None:
    body, prompt = recorded("chat_unary_ids_logprobs")
    named = Named(str(MODEL))
    at = len(prompt) - 3
    other = next(token for token in range(300) if named.raw(token) == b"Q")
    changed = [*prompt[:at], other, *prompt[at + 1 :]]
    found = check(body, changed)
    (form,) = found.forms
    assert (found.result, form.position) == (DriftResult.MISMATCH, at)
    assert form.engine is not None
    assert form.rendered is not None
    assert (form.engine.token_id, form.engine.token) == (other, "Q")
    assert form.rendered.token_id == prompt[at]
    assert form.rendered.text.endswith("assistant\n")
    assert form.before.endswith("Hi<|im_end|>\n")
    # One side may end before the other.
    shorter = check(body, prompt[:-1]).forms[0]
    assert shorter.engine is not None
    assert (shorter.position, shorter.engine.token_id) == (len(prompt) - 1, None)


NOT_CHECKABLE: list[tuple[Any, str]] = [
    (b"not json", "no JSON"),
    (b"[]", "no messages"),
    ({"prompt": "x"}, "no messages"),
    ({"messages": [], "chat_template": "x"}, "template of its own"),
    ({"messages": [7]}, "no object"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "multimodal"),
    ({"messages": [{"role": "user", "content": 7}]}, "refused the messages"),
    ({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": 7}, "kwargs"),
    (
        {
            "messages": [{"role": "user", "content": "x"}],
            "chat_template_kwargs": {"tokenize": True},
        },
        "kwargs",
    ),
    ({"messages": [{"role": "user", "content": "x"}], "tools": 7}, "refused the messages"),
]


@pytest.mark.parametrize(("body", "words"), NOT_CHECKABLE, ids=range(len(NOT_CHECKABLE)))
@pytest.mark.parametrize("kind", ["vllm", "tiny"])
def test_what_cannot_be_checked_says_why(body: Any, words: str, kind: str) -> None:
    found = check(body, [1, 2, 3], engine_kind=kind)
    if kind == "tiny" and found.result is DriftResult.MISMATCH:
        return  # its template takes what the other refuses
    assert found.result is DriftResult.NOT_CHECKABLE
    assert found.reason
    if kind == "vllm":
        assert words in found.reason


def test_without_a_tokenizer_or_with_another_one_nothing_is_claimed() -> None:
    body, prompt = recorded("chat_unary_ids_logprobs")
    assert "ROLLOUT_EXPLORER_TOKENIZER" in check(body, prompt, None).reason
    assert "cannot be loaded" in check(body, prompt, "/nowhere/at/all").reason
    other = check(body, prompt, tokenizer_id=TokenizerId("0" * 64))
    assert "another tokenizer" in other.reason
    own = Named(str(MODEL)).tokenizer_sha256
    for known in (own, "learned:tiny"):
        found = check(body, prompt, tokenizer_id=TokenizerId(known))
        assert found.result is DriftResult.MATCH


def test_a_tokenizer_without_a_template_is_none(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((MODEL / name).read_bytes())
    with pytest.raises(ConfigurationError, match="no chat template"):
        Named(str(tmp_path))


def test_calls_without_ids_or_bodies_are_not_checkable() -> None:
    call = make_call("a", 1, None, None)
    kept = make_call("b", 2, [1, 2], [3])
    checker = DriftChecker(str(MODEL), "", lambda _: [])
    one, two = checker.check(judged(call, kept), 0, 5).calls
    assert "ids of its prompt are not on record" in one.reason
    assert "sent is not on record" in two.reason
    part = checker.check(judged(call, kept), 0, 1)
    assert (len(part.calls), part.total, part.following) == (1, 2, 1)
    assert checker.check(judged(call, kept), part.following or 0, 1).following is None


# -- over HTTP -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("drift") / "store.duckdb"
    with serving(TinyEngine(), store) as running:
        yield running


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def rollout(live: Live) -> str:
    """Three turns with a tool call, through the proxy."""
    made, key = live.create(run="drift")
    said: list[dict[str, Any]] = [{"role": "user", "content": "What is 4 + 5?"}]
    for _ in range(3):
        answer = live.chat(key, messages=said, tools=[TOOL], max_tokens=40)
        assert answer.status_code == 200
        said = [*said, *with_call('{"q":1}')["messages"][1:], {"role": "user", "content": "?"}]
    return made


def test_the_built_in_engine_agrees_with_its_own_template(live: Live, rollout: str) -> None:
    found = live.api("GET", f"/api/v1/rollouts/{rollout}/drift")
    assert found["same_template"] is True
    assert found["counts"] == {"match": 3, "mismatch": 0, "not_checkable": 0}
    assert found["next"] is None
    assert [form["arguments"] for form in found["calls"][0]["forms"]] == ["as sent"]
    assert {form["arguments"]: form["result"] for form in found["calls"][2]["forms"]} == {
        "object": "mismatch",
        "string": "match",
    }


def test_the_answer_is_paged_and_bad_numbers_are_refused(live: Live, rollout: str) -> None:
    path = f"/api/v1/rollouts/{rollout}/drift"
    part = live.api("GET", f"{path}?limit=2")
    assert (len(part["calls"]), part["next"]) == (2, 2)
    rest = live.api("GET", f"{path}?limit=2&cursor=2")
    assert (len(rest["calls"]), rest["next"]) == (1, None)
    for query in ("cursor=-1", "cursor=x", "limit=1e3", "cursor=١"):
        live.api("GET", f"{path}?{query}", status=422)
    live.api("GET", "/api/v1/rollouts/nothing/drift", status=404)


def test_it_changes_nothing_about_the_rollout(live: Live, rollout: str) -> None:
    before = live.api("GET", f"/api/v1/rollouts/{rollout}")
    live.api("GET", f"/api/v1/rollouts/{rollout}/drift")
    after = live.api("GET", f"/api/v1/rollouts/{rollout}")
    assert before["verdict"] == after["verdict"]


def test_the_page_and_its_part(live: Live, rollout: str) -> None:
    headers = {"authorization": f"Bearer {live.token}"}
    url = f"{live.url}/rollouts/{rollout}"
    tab = httpx.get(f"{url}/provenance", headers=headers).text
    assert f'hx-get="/rollouts/{rollout}/drift"' in tab
    part = httpx.get(f"{url}/drift", headers=headers | {"hx-request": "true"}).text
    assert "<html" not in part
    assert part.count("<article") == 3
    assert "object: mismatch, string: match" in part
    whole = httpx.get(f"{url}/drift", headers=headers).text
    assert "<html" in whole
    assert "the same" in whole
    twin = httpx.get(f"{url}/drift.json", headers=headers).json()
    assert [row["result"] for row in twin["rows"]] == ["match"] * 3


def test_white_space_that_differs_can_be_seen(tmp_path: Path) -> None:
    said: dict[str, Any] = {"messages": [{"role": "user", "content": "a b"}]}
    other = {"messages": [{"role": "user", "content": "a\n\tb"}]}
    script = [{"text": "ok", "prompt_token_ids": list(BuiltIn().ids(other))}]
    with serving(ScriptedEngine(script), tmp_path / "store.duckdb") as running:
        made, key = running.create(run="drift")
        assert running.chat(key, **said).status_code == 200
        headers = {"authorization": f"Bearer {running.token}", "hx-request": "true"}
        part = httpx.get(f"{running.url}/rollouts/{made}/drift", headers=headers).text
        assert "mismatch" in part
        assert "↵→b&lt;|im_end|&gt;↵" in part


def test_the_command(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    with serving(TinyEngine(), store) as running:
        made, key = running.create(run="drift")
        assert running.chat(key, messages=with_call('{"q":1}')["messages"]).status_code == 200

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "explorer", "drift", *words, "--store", str(store)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = run(made)
    assert "call 0: match (arguments as object: mismatch, string: match)" in said
    assert said.splitlines()[-1] == "1 match, 0 mismatch, 0 not checkable"
    assert json.loads(run(made, "--json"))["counts"]["match"] == 1


@pytest.mark.parametrize(
    "template",
    ["{{ 1 // (messages|length - 1) }}", "{{ range(10**9)|list }}", "{{ ''.__class__.mro() }}"],
)
def test_a_template_that_breaks_on_the_messages_is_not_checkable(
    tmp_path: Path, template: str
) -> None:
    folder = tmp_path / "tokenizer"
    shutil.copytree(MODEL, folder)
    (folder / "chat_template.jinja").write_text(template)
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    found = check(body, [1, 2], str(folder))
    assert found.result is DriftResult.NOT_CHECKABLE
    assert "the chat template refused the messages" in found.reason
