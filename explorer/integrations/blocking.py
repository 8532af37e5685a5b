"""The HTTP API for programs that block: trainers' and environments' threads.

Owns: addresses, the operator's token, one connection a request, errors of the API.
Must not know: anything inside the server; OpenEnv, TRL.

Nothing is kept open between requests, so that a server object can be shared by threads
and sent to another process.
"""

from __future__ import annotations

import hashlib
import http.client
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from explorer.errors import ConfigurationError
from explorer.integrations.client import ApiError

_PAGE = 200
_CONTENT_HASH = re.compile(r'"?(?:sha256-)?([0-9a-f]{64})"?')


class TraceRefused(ApiError):
    """The rollout may not train: `reasons` say why, and nobody may train on it.

    Not a `ValueError`: a trainer takes it as a rollout without a score, while a
    malformed trace (a `ValueError`) must stop it.
    """

    @classmethod
    def because(cls, code: str, message: str) -> TraceRefused:
        """A refusal that we make here, in the form of the server's."""
        reason = {"code": code, "message": message, "call_ids": []}
        return cls(409, "not_trainable", message, {"reasons": [reason]})

    @property
    def codes(self) -> list[str]:
        """The codes of the reasons."""
        return [str(reason.get("code")) for reason in self.reasons]


class DamagedTransfer(ValueError):
    """The bytes that came are not those that the server announced."""


@dataclass(frozen=True, slots=True)
class ExplorerServer:
    """A running Rollout Explorer.

    Attributes:
        url: base address, e.g. ``http://127.0.0.1:7860``.
        token: the operator's; needed where the server asks for it.
        timeout_s: longest wait for one answer.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"{self.url!r} is no address of a server; give one like http://127.0.0.1:7860"
            )

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """One API call; the decoded JSON answer (None for an empty one).

        Raises:
            ApiError: the server refused, with its code and sentence.
            OSError: it cannot be reached.
        """
        raw, _ = self.read(method, path, body)
        return orjson.loads(raw) if raw else None

    def read(self, method: str, path: str, body: Any = None) -> tuple[bytes, str | None]:
        """One API call; the bytes of the answer and its ETag."""
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_s)
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else orjson.dumps(body)
        try:
            connection.request(method, parts.path.rstrip("/") + path, data, headers)
            response = connection.getresponse()
            raw = response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{self.url} broke off: {error!r}") from error
        except TimeoutError as error:
            raise TimeoutError(f"{self.url} did not answer in {self.timeout_s:g} s") from error
        except OSError as error:
            why = error.strerror or str(error)
            raise ConnectionError(f"{self.url} cannot be reached: {why}") from error
        finally:
            connection.close()
        if response.status >= 400:
            raise ApiError.read(response.status, raw)
        return raw, response.headers.get("etag")

    def create(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """A new rollout with its capture key and base addresses."""
        made: dict[str, Any] = self.request("POST", "/api/v1/rollouts", wanted)
        return made

    def show(self, rollout_id: str) -> dict[str, Any]:
        """Status, reward, counts and verdict."""
        found: dict[str, Any] = self.request("GET", _of(rollout_id))
        return found

    def reward(self, rollout_id: str, reward: float | None, **more: Any) -> None:
        """Records a reward; None is "unscored"."""
        self.request("POST", _of(rollout_id, "/reward"), {"reward": reward} | more)

    def close(self, rollout_id: str, **how: Any) -> dict[str, Any]:
        """Seals a rollout; answers with its status and verdict."""
        answer: dict[str, Any] = self.request("POST", _of(rollout_id, "/close"), how)
        return answer

    def model(self) -> str:
        """Name of the engine's model, as a harness should send it."""
        certificate = (self.request("GET", "/api/v1/engine") or {}).get("certificate") or {}
        return str(certificate.get("model") or "model")

    def rollouts(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Summaries, newest first; `filters` as in the address, e.g. ``run="demo"``."""
        cursor: str | None = None
        while True:
            query = filters | ({"cursor": cursor} if cursor else {})
            words = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
            page = self.request("GET", f"/api/v1/rollouts?{words}")
            yield from page["rollouts"]
            cursor = page["next"]
            if not cursor:
                return

    def calls(self, rollout_id: str) -> Iterator[dict[str, Any]]:
        """Every call that ended, in arrival order."""
        cursor: int | None = 0
        while cursor is not None:
            path = _of(rollout_id, f"/calls?cursor={cursor}&limit={_PAGE}")
            page = self.request("GET", path)
            yield from page["calls"]
            cursor = page["next"]

    def call(self, rollout_id: str, call_id: str) -> dict[str, Any]:
        """One call with its ids, logprobs and mask spans."""
        path = _of(rollout_id, f"/calls/{quote(call_id, safe='')}")
        found: dict[str, Any] = self.request("GET", path)
        return found

    def body(self, rollout_id: str, call_id: str, kind: str) -> bytes | None:
        """The bytes of one direction of a call, or None when there are none."""
        path = _of(rollout_id, f"/raw/{quote(call_id, safe='')}?kind={kind}")
        try:
            return self.read("GET", path)[0]
        except ApiError as error:
            if error.http_status == 404:
                return None
            raise

    def training_trace(self, rollout_id: str, *, needs_reward: bool = False) -> bytes:
        """The Training trace's bytes, compared with the hash that the server gave.

        Raises:
            TraceRefused: the rollout may not train.
            DamagedTransfer: the bytes are not those that the server hashed.
        """
        path = _of(rollout_id, "/training-trace" + ("?needs=reward" if needs_reward else ""))
        try:
            raw, etag = self.read("GET", path)
        except ApiError as error:
            if error.http_status == 409:
                raise TraceRefused(409, error.api_code, str(error), error.details) from error
            raise
        announced = _CONTENT_HASH.fullmatch(etag or "")
        if announced and announced.group(1) != hashlib.sha256(raw).hexdigest():
            raise DamagedTransfer(f"the trace of {rollout_id} was damaged on its way")
        return raw

    def weights(
        self, state: str | None = None, weight_version: int | None = None, **more: Any
    ) -> dict[str, Any]:
        """The weight fence: with a state it is told, without one it is asked.

        Args:
            state: "syncing" closes the fence, "ready" opens it with `weight_version`.
            more: `drain`, `wait_s`, `lease_s`, `weights_path`, `engine_weight_label`.
        """
        told = {"state": state, "weight_version": weight_version} | more
        answer: dict[str, Any] = (
            self.request("GET", "/api/v1/weights")
            if state is None
            else self.request("POST", "/api/v1/weights", told)
        )
        return answer

    def post_trainer_logprobs(
        self,
        rollout_id: str,
        weight_version: int,
        calls: Sequence[Mapping[str, Any]],
        **more: str,
    ) -> dict[str, Any]:
        """What a trainer computed for the sampled tokens of a rollout's calls.

        Args:
            weight_version: of the weights that computed them.
            calls: each with `call_id`, `per_token_logps` and, to be checked, its
                `completion_token_ids`.
            more: `source` and `kind`.
        """
        body = {"weight_version": weight_version, "calls": list(calls)} | more
        answer: dict[str, Any] = self.request(
            "POST", _of(rollout_id, "/trainer-logprobs"), body
        )
        return answer

    def capture_audit(self, rollout_id: str, **query: str) -> dict[str, Any]:
        """Everything that reached the proxy under a rollout, trainable or not."""
        words = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        path = _of(rollout_id, "/capture-audit" + (f"?{words}" if words else ""))
        found: dict[str, Any] = self.request("GET", path)
        return found


def _of(rollout_id: str, rest: str = "") -> str:
    return f"/api/v1/rollouts/{quote(rollout_id, safe='')}{rest}"
