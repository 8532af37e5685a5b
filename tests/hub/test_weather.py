"""What goes wrong between us and the Hub: waited for, told apart, never told too much."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from explorer.errors import (
    ConfigurationError,
    HeadMoved,
    HubRateLimited,
    HubRefused,
    HubUnauthorised,
    HubUnavailable,
    PublishFailed,
    PublishStopped,
)
from explorer.export.hub import wire
from explorer.export.hub.client import AGENT, HubClient, checked_endpoint
from explorer.export.hub.dataset import HubDataset
from explorer.export.hub.targets import target_of
from explorer.export.hub.wire import Patience
from tests.hub.faults import (
    Act,
    Doing,
    Limit,
    cutting,
    failing,
    halving,
    limited,
    losing,
    waiting,
)
from tests.hub.making import (
    NEVER,
    QUICK,
    REPO,
    check_history,
    dataset,
    described,
    set_of,
    unheard,
)
from tests.hub.server import LocalHub
from tests.hub.wire import Answer

EVERY_STEP = (
    "GET /api/whoami",
    "GET /api/datasets/ada/rollouts$",
    "POST /api/repos/create",
    "auth-check",
    "POST /api/validate-yaml",
    "paths-info",
    "/preupload/",
    "objects/batch",
    "PUT /upload/",
    "lfs/verify",
    "/commit/",
)


def published(hub: LocalHub, token: str, folder: Path) -> None:
    """Publishes two shards, and checks that they are there, once."""
    target = dataset(hub, token)
    target.prepare()
    target.put(set_of(folder, 2), target.head(), unheard, NEVER)
    repo = hub.dataset(REPO)
    assert len(repo.history) == 2
    assert len(repo.head.files) == 5
    check_history(hub, repo)


@pytest.mark.parametrize("step", EVERY_STEP)
@pytest.mark.parametrize("how", ["503", "cut", "lost"])
def test_each_request_may_fail_twice(
    hub: LocalHub, ada: str, tmp_path: Path, step: str, how: str
) -> None:
    act = {"503": failing(503), "cut": cutting(), "lost": losing()}[how]
    fault = hub.faults.add(step, act, times=2)
    published(hub, ada, tmp_path)
    # One that was done, and whose answer was lost, need not be asked for again.
    assert fault.seen >= (1 if how == "lost" else 3)


def test_a_commit_whose_answer_is_lost_is_made_once(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    hub.faults.add("/commit/", losing())
    published(hub, ada, tmp_path)
    assert len(hub.faults.asked("/commit/")) == 1


def test_another_commit_in_progress_is_waited_for(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    words = "Another commit operation is in progress for this repository."
    fault = hub.faults.add("/commit/", failing(409, words), times=2)
    published(hub, ada, tmp_path)
    assert fault.seen == 3


def test_a_commit_that_outlasts_our_patience_is_made_once(
    hub: LocalHub, ada: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(wire._TIMEOUT, "read", 0.15)
    hub.faults.add("/commit/", waiting(0.4))
    published(hub, ada, tmp_path)
    time.sleep(0.4)
    # The first was done after all, on a head that had moved by then.
    assert len(hub.faults.asked("/commit/")) >= 2
    assert len(hub.dataset(REPO).history) == 2


def test_what_the_hub_tells_may_be_behind_what_was_done(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    hub.lag = 0.1
    target = dataset(hub, ada)
    target.prepare()
    upload = set_of(tmp_path, 2)
    hub.faults.add("/commit/", losing())
    target.put(upload, target.head(), unheard, NEVER)
    repo = hub.dataset(REPO)
    assert len(repo.history) == 2
    # The old head is still told of, and taken for the present one.
    new = described(tmp_path, (*upload.files, "sequences/part-00002-0000000000000001.parquet"))
    (tmp_path / new.files[-1]).write_bytes(b"new rows")
    repo.branches["main"] = repo.history[-1].oid
    stale = target.head()
    for _ in range(5):
        try:
            target.put(new, stale, unheard, NEVER)
            break
        except HeadMoved:
            stale = target.head()
    assert repo.head.parent == repo.history[1].oid
    assert set(new.files) <= set(repo.head.files)
    check_history(hub, repo)


def test_two_people_publish_at_once_each_with_their_own_token(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    bob = hub.people.add("bob")
    hub.faults.add("PUT /upload|/commit/|/preupload/", waiting(0.05), times=99)
    tried: list[str] = []

    def publish(name: str, token: str) -> None:
        target = dataset(hub, token, f"{name}/set")
        target.prepare()
        target.put(set_of(tmp_path / name, 2), target.head(), unheard, NEVER)
        tried.append(name)

    threads = [
        threading.Thread(target=publish, args=pair) for pair in (("ada", ada), ("bob", bob))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(tried) == ["ada", "bob"]
    for name in tried:
        assert {commit.author for commit in hub.dataset(f"{name}/set").history} == {name}


def test_cookies_are_not_kept(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    def baking(doing: Doing) -> Answer:
        given = doing()
        return Answer(given.status, given.body, given.headers | {"set-cookie": "token=ada's"})

    hub.faults.add("", baking, times=999)
    published(hub, ada, tmp_path)
    assert hub.faults.cookies == {None}


@pytest.mark.parametrize(
    "act", [failing(429, retry_after="1"), limited(1)], ids=["retry-after", "ratelimit"]
)
def test_429_is_waited_for_as_long_as_it_says(
    hub: LocalHub, ada: str, tmp_path: Path, act: Act
) -> None:
    hub.faults.add("PUT /upload/", act)
    started = time.monotonic()
    published(hub, ada, tmp_path)
    assert 1.0 <= time.monotonic() - started < 4.0


def test_a_real_limit_is_kept_to(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    hub.limit = Limit(quota=12, window=1.0)
    published(hub, ada, tmp_path)
    assert hub.faults.asked("/commit/")


def test_a_wait_that_is_too_long_is_told_and_not_waited(hub: LocalHub, ada: str) -> None:
    hub.faults.add("/create", failing(429, retry_after="3600"), times=9)
    started = time.monotonic()
    with pytest.raises(HubRateLimited, match="asks to wait 60 minutes") as refused:
        dataset(hub, ada).prepare()
    assert time.monotonic() - started < 2
    assert refused.value.retryable


def test_tries_have_an_end(hub: LocalHub, ada: str) -> None:
    for status, kind in ((503, HubUnavailable), (429, HubRateLimited)):
        fault = hub.faults.add("whoami", failing(status), times=99)
        with pytest.raises(kind, match=f"answered {status}, 4 times, at {hub.url}"):
            dataset(hub, ada).prepare()
        assert fault.seen == 4
        hub.faults.clear()
        fault = hub.faults.add("/create", failing(status), times=99)
        with pytest.raises(kind, match=f"answered {status}, 5 times"):
            dataset(hub, ada).prepare()
        assert fault.seen == 5
        hub.faults.clear()


def test_nobody_is_there(ada: str, hub: LocalHub) -> None:
    client = HubClient("http://127.0.0.1:9", ada, Patience(tries=2, first=0.01))
    with pytest.raises(
        HubUnavailable, match=r"the connection failed \(ConnectError\), 2 times"
    ):
        HubDataset(REPO, client).prepare()


def test_a_download_that_breaks_off_begins_again(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    published(hub, ada, tmp_path / "set")
    name = "sequences/part-00000-0000000000000000.parquet"
    fault = hub.faults.add("GET /storage/", halving(), times=2)
    dataset(hub, ada).fetch(name, tmp_path / "got")
    assert fault.seen == 3
    assert (tmp_path / "got").read_bytes() == (tmp_path / "set" / name).read_bytes()
    fault = hub.faults.add("GET /storage/", halving(), times=99)
    with pytest.raises(HubUnavailable, match="connection broke"):
        dataset(hub, ada).fetch(name, tmp_path / "other")
    assert {path.name for path in tmp_path.iterdir()} == {"got", "set", "login"}


def test_stop_ends_waiting(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    target = dataset(hub, ada)
    target.prepare()
    hub.faults.add("/preupload/", failing(429, retry_after="4"), times=9)
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    started = time.monotonic()
    with pytest.raises(PublishStopped):
        target.put(set_of(tmp_path, 1), target.head(), unheard, stop)
    assert time.monotonic() - started < 2


def test_slow_is_not_broken(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    hub.faults.add("/commit/|PUT /upload", waiting(0.3), times=2)
    published(hub, ada, tmp_path)


def test_what_is_no_hub_is_told_as_that(hub: LocalHub, ada: str) -> None:
    page = Answer(200, b"<html>log in to the network</html>", {"content-type": "text/html"})
    hub.faults.add("whoami", lambda doing: page, times=9)
    with pytest.raises(HubUnavailable, match="does not speak as the Hub does"):
        dataset(hub, ada).prepare()


def test_messages_have_no_token_no_signature_and_no_control_characters(
    hub: LocalHub, ada: str
) -> None:
    words = (
        f"bad {ada} and hf_abcdefghij0123 at https://cdn.example/x?X-Amz-Signature=5ec2e7&b=1 "
        "ok" + "z" * 2000
    )
    hub.faults.add("auth-check", failing(422, words), times=9)
    with pytest.raises(HubRefused) as refused:
        dataset(hub, ada).prepare()
    said = refused.value.message
    assert "bad [token] and [token] at https://cdn.example/x?... ok" in said
    assert ada not in said
    assert "5ec2e7" not in said
    assert len(said) < 500
    assert said.isprintable()
    assert ada not in repr(dataset(hub, ada))


def test_every_failure_is_without_the_signature_of_an_address(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    target = dataset(hub, ada)
    target.prepare()
    for status in (400, 403, 404, 409, 422, 501, 503):
        fault = hub.faults.add("PUT /upload/", failing(status), times=99)
        with pytest.raises(PublishFailed) as refused:
            target.put(set_of(tmp_path, 1), target.head(), unheard, NEVER)
        hub.faults.planned.remove(fault)
        assert "X-Amz" not in refused.value.message
        assert "could not upload sequences/part-00000" in refused.value.message
        assert refused.value.__cause__ is None or refused.value.__suppress_context__


@pytest.mark.parametrize("token", ["hf_a b", "hf_a\nX-Evil: 1", "hf_ä", ""])
def test_what_cannot_be_a_token_is_never_sent(hub: LocalHub, token: str) -> None:
    with pytest.raises(HubUnauthorised):
        target_of(REPO, token=token, private=True, gated="", endpoint=hub.url).prepare()
    assert hub.faults.log == []


@pytest.mark.parametrize(
    "endpoint", ["http://hub.example", "ftp://127.0.0.1", "huggingface.co", "https://"]
)
def test_an_address_to_which_no_token_may_travel(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="must begin with https://"):
        checked_endpoint(endpoint)


def test_the_address_is_that_of_the_environment_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert checked_endpoint(None) == "https://huggingface.co"
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example/")
    assert checked_endpoint(None) == "https://hub.example"
    assert checked_endpoint("http://localhost:8090/") == "http://localhost:8090"
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    with pytest.raises(ConfigurationError):
        checked_endpoint(None)


def test_only_the_given_token_is_sent_under_our_own_name(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    published(hub, ada, tmp_path)
    # The storage sees none; everything else the given one. Not the login of the machine.
    assert hub.faults.tokens == {ada, None}
    assert {agent for agent in hub.faults.agents if not agent.startswith("python-httpx")} == {
        AGENT
    }
    assert not hub.faults.asked("agent-harnesses|telemetry")


def test_others_of_this_process_use_the_library_as_before(hub: LocalHub, ada: str) -> None:
    dataset(hub, ada).prepare()
    hub.faults.add("whoami", failing(503))
    with pytest.raises(Exception, match="503"):
        HfApi(endpoint=hub.url, token=ada).whoami()
    assert HfApi(endpoint=hub.url, token=ada).whoami()["name"] == "ada"


def test_offline_is_told(hub: LocalHub, ada: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnavailable, match="HF_HUB_OFFLINE is set"):
        dataset(hub, ada).prepare()


def test_waits_grow_and_are_not_all_the_same() -> None:
    patience = Patience()
    for tried in range(1, 12):
        most = min(30.0, 2.0 ** (tried - 1))
        waits = {patience.wait(tried, None) for _ in range(20)}
        assert len(waits) > 1
        assert all(most / 2 <= wait <= most for wait in waits)
    asked = {patience.wait(1, 60.0) for _ in range(20)}
    assert len(asked) > 1
    assert all(60 <= wait <= 62 for wait in asked)
    assert QUICK.limit < 3600
