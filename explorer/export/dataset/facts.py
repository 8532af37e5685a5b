"""The evidence of a dataset's part: what its card may state, summed while it is written.

Owns: how each fact follows from a record and its verdict.
Must not know: files, the manifest, how a card reads. It holds no clock and no ids.

Only what was recorded or judged is summed. Where nobody said something, that is counted, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from explorer.errors import InvalidValue
from explorer.export.dataset.fact_list import FACTS_VERSION, empty_sums
from explorer.export.dataset.tallies import Sum, told
from explorer.records import Call, CallStatus, Certificate, EventKind, Grade, RolloutRecord
from explorer.trace.jsontext import dump
from explorer.trace.mask import raw_coincides
from explorer.trace.policy import Policy
from explorer.trace.verdict import Judgement

# Whoever only reads facts needs no store.
if TYPE_CHECKING:
    from explorer.export.secret_review import Review

# They differ from call to call and would hide what does not.
_VARIES = frozenset(("seed", "max_tokens", "max_completion_tokens", "max_output_tokens"))
_ALIKE = 5000
PROVED, COINCIDES, ACCEPTED = "proved", "raw_at_temperature_one", "accepted_without_proof"


class _Sampling(NamedTuple):
    """What is counted of a call that sampled; `asked` and `sent` are JSON."""

    asked: bytes
    sent: bytes
    model: str | None
    greedy: bool
    constraints: tuple[str, ...]
    versions: tuple[int | None, int | None]
    label: str | None
    proved: tuple[Any, ...] | None


class _Alike(NamedTuple):
    """Everything that is counted of a call."""

    dialect: str
    status: str
    failure: str | None
    level: str
    role: str | None
    stream: bool
    injected: bool
    sampling: _Sampling | None


def _alike(call: Call, role: str | None, certificate: Certificate | None) -> _Alike:
    sampling = None
    if sampled(call):
        asked, sent = call.requested_sampling, call.submitted_sampling
        sampling = _Sampling(
            dump(asked) if asked else b"{}",
            dump(sent) if sent else b"{}",
            call.model_served,
            call.greedy,
            call.constraints,
            (call.weight_version_start, call.weight_version_end),
            call.engine_weight_label,
            None if certificate is None else _proved(certificate),
        )
    return _Alike(
        *(call.dialect, call.status, call.failure_kind, call.capture_level, role),
        *(call.stream, call.injected, sampling),
    )


_PROVED = ("passing", "capture_level", "logprobs", "certifiable")


def _proved(certificate: Certificate) -> tuple[Any, ...]:
    level, kind = str(certificate.capture_level), str(certificate.logprob_kind)
    return certificate.passing, level, kind, certificate.certifiable


class Facts:
    """Sums the facts of rollouts, one after the other."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, Any]] = empty_sums()
        # Most calls are like others: they are counted, and looked at once.
        self._alike: dict[_Alike, int] = {}

    def to_json(self) -> dict[str, Any]:
        """All sums; equal rollouts in equal order give equal JSON."""
        self._sum_calls()
        return {"version": FACTS_VERSION} | {
            section: {name: each.to_json() for name, each in sums.items()}
            for section, sums in self._sums.items()
        }

    def absorb(self, part: Mapping[str, Any]) -> None:
        """Adds what another part's facts were kept as.

        Raises:
            InvalidValue: they are none, or of another version.
        """
        if part.get("version") != FACTS_VERSION:
            raise InvalidValue(
                f"this program reads facts of version {FACTS_VERSION}, "
                f"not {str(part.get('version'))[:40]}"
            )
        for section, sums in self._sums.items():
            values = part.get(section)
            if not isinstance(values, Mapping) or set(values) != set(sums):
                raise InvalidValue("facts of other names than this program has", path=section)
            for name, each in sums.items():
                _absorb(each, values[name], f"{section}.{name}")

    def add(
        self, record: RolloutRecord, judgement: Judgement, review: Review | None = None
    ) -> None:
        """One more rollout.

        Args:
            review: what its scan for secrets found and what people decided about it.
        """
        self._rollout(record, judgement)
        self._provenance(record, judgement)
        self._calls(record, judgement)
        self._verdict(record, judgement)
        self._people(record, review)

    def _rollout(self, record: RolloutRecord, judgement: Judgement) -> None:
        rollout, state, sums = record.rollout, judgement.state, self._sums["rollouts"]
        sums["all"].add()
        sums["trainable"].add(judgement.trainable)
        sums["purpose"].add(str(rollout.purpose))
        sums["ok"].add(state.ok)
        sums["runs"].add(rollout.run)
        for name, value in (("task", rollout.task), ("group", rollout.group)):
            if value is None:
                sums[f"without_{name}"].add()
            else:
                sums[f"{name}s"].add(value)
        sums["time_us"].add(rollout.created_us)
        for event in record.events:
            if event.kind is EventKind.CLOSED:
                sums["time_us"].add(event.time_us)
        rewards = self._sums["rewards"]
        if state.reward is None:
            rewards["null"].add()
        else:
            rewards["scored"].add()
            rewards["range"].add(state.reward)
            rewards["sum"].add(state.reward)

    def _provenance(self, record: RolloutRecord, judgement: Judgement) -> None:
        rollout, certificate, sums = record.rollout, record.certificate, self._sums
        numbers = {} if certificate is None else certificate.numbers
        harness = {
            "name": rollout.harness,
            "version": rollout.harness_version,
            "config_sha256": rollout.harness_config_sha256,
        }
        sums["harness"]["used"].add(told(harness))
        model = {"model": rollout.model, "tokenizer_id": rollout.tokenizer_id}
        sums["model"]["used"].add(told(model))
        sums["model"]["tokenizers"].add(told(numbers.get("tokenizer_sha256")))
        sums["model"]["chat_templates"].add(told(rollout.chat_template_sha256))
        engine = {
            "kind": rollout.engine_kind,
            "name": rollout.engine_name,
            "version": rollout.engine_version,
        }
        sums["engine"]["used"].add(told(engine))
        sums["engine"]["flags"].add(told(numbers.get("flags")))
        sums["engine"]["streaming"].add(str(rollout.streaming))
        sums["engine"]["token_in"].add("on" if rollout.token_in else "off")
        sums["sampling"]["fixed"].add(told(rollout.sampling))
        sums["made"]["app_versions"].add(told(rollout.app_version))
        sums["made"]["policies"].add(_policy(judgement.policy))

    def _calls(self, record: RolloutRecord, judgement: Judgement) -> None:
        alike, tokens = self._alike, self._sums["tokens"]
        known: dict[str | None, Certificate | None] = {}
        prompt = completion = repeats = 0
        for call in record.calls:
            name = call.certificate_id
            if name not in known:
                known[name] = record.certificate_of(call)
            decision = judgement.roles.get(call.call_id)
            key = _alike(call, None if decision is None else decision.role, known[name])
            alike[key] = alike.get(key, 0) + 1
            repeats += max(call.retry_count, 0)
            if call.prompt_delta is not None:
                prompt += call.prompt_delta.size
            if key.sampling is not None and call.completion is not None:
                completion += call.completion.size
                self._trained(judgement, call, known[name])
        tokens["prompt"].add(prompt)
        tokens["sampled"].add(completion)
        self._sums["calls"]["repeats"].add(repeats)
        if len(alike) > _ALIKE:
            self._sum_calls()

    def _trained(
        self, judgement: Judgement, call: Call, certificate: Certificate | None
    ) -> None:
        mask = judgement.masks.get(call.call_id)
        if mask is None or not mask.supervised or not judgement.trainable:
            return
        if certificate is not None and certificate.passing:
            basis = PROVED
        else:
            basis = COINCIDES if raw_coincides(call, certificate) else ACCEPTED
        self._sums["certificates"]["trained"].add(basis, mask.supervised)

    def _sum_calls(self) -> None:
        sums = self._sums["calls"]
        for key, n in self._alike.items():
            sums["all"].add(n)
            sums["streamed"].add(n * key.stream)
            sums["injected"].add(n * key.injected)
            sums["dialects"].add(str(key.dialect), n)
            sums["statuses"].add(str(key.status), n)
            if key.failure is not None:
                sums["failures"].add(str(key.failure), n)
            sums["levels"].add(str(key.level), n)
            sums["roles"].add(None if key.role is None else str(key.role), n)
            if key.sampling is not None:
                self._sum_sampled(key.sampling, n)
        self._alike.clear()

    def _sum_sampled(self, key: _Sampling, n: int) -> None:
        sums, weights = self._sums["sampling"], self._sums["weights"]
        asked, sent = orjson.loads(key.asked), orjson.loads(key.sent)
        self._sums["model"]["served"].add(told(key.model), n)
        sums["calls"].add(n)
        sums["greedy"].add(n * key.greedy)
        sums["asked"].add(told(_steady(asked)), n)
        sums["sent"].add(told(_steady(sent)), n)
        sums["seeded"].add(n * (sent.get("seed") is not None))
        for name in ("max_tokens", "max_completion_tokens"):
            sums["max_tokens"].add(sent.get(name))
        for constraint in key.constraints:
            sums["constraints"].add(told(constraint), n)
        seen = set(key.versions) - {None}
        for version in seen:
            weights["versions"].add(version)
        weights["untold"].add(n * (not seen))
        weights["crossed"].add(n * (len(seen) > 1))
        weights["labels"].add(told(key.label), n)
        proved = None if key.proved is None else dict(zip(_PROVED, key.proved, strict=True))
        self._sums["certificates"]["calls"].add(proved, n)

    def _verdict(self, record: RolloutRecord, judgement: Judgement) -> None:
        if judgement.trainable:
            self._sums["tokens"]["supervised"].add(judgement.supervised_tokens)
        reasons = "reasons" if judgement.trainable else "reasons_elsewhere"
        for reason, n in judgement.mask_counts.items():
            self._sums["tokens"][reasons].add(str(reason), n)
        sums = self._sums["checks"]
        codes = [(item.code, str(item.grade)) for item in judgement.findings]
        for code, grade in codes:
            sums["found"].add(_finding(code, grade))
        for code, grade in dict.fromkeys(codes):
            sums["rollouts"].add(_finding(code, grade))
        sums["clean"].add(all(grade == Grade.INFO for _, grade in codes))
        sums["contradicted"].add(len(record.contradicted))
        sums["open_calls"].add(len(record.open_calls))
        self._certificates(record)

    def _certificates(self, record: RolloutRecord) -> None:
        sums = self._sums["certificates"]
        used = {
            certificate.certificate_id: certificate
            for call in record.calls
            if sampled(call) and (certificate := record.certificate_of(call)) is not None
        }
        for name, certificate in used.items():
            sums["used"].add(name)
            numbers = certificate.numbers
            sums["probe_calls"].add(numbers.get("questions"))
            for fact, value in _measured(numbers):
                sums[fact].add(value)
        for words in dict.fromkeys(word for each in used.values() for word in each.failures):
            sums["failures"].add(told(words))

    def _people(self, record: RolloutRecord, review: Review | None) -> None:
        sums = self._sums["people"]
        for override in record.overrides:
            sums["overrides"].add(told(override.kind))
        sums["overridden"].add(bool(record.overrides))
        if review is None:
            return
        sums["reviewed"].add()
        sums["paths"].add(review.n_paths)
        for item in review.secrets:
            decision = item.decision
            sums["secrets"].add("undecided" if decision is None else told(decision.decision))


def sampled(call: Call) -> bool:
    """Whether a call's sampled ids are on record."""
    return (
        call.completion is not None
        and call.completion.size > 0
        and call.status is not CallStatus.REFUSED
    )


@lru_cache(maxsize=16)
def _policy(policy: Policy) -> Any:
    return told({"name": policy.name, "version": policy.version, "sha256": policy.sha256})


def _finding(code: str, grade: str) -> dict[str, str]:
    return {"code": code, "grade": grade}


def _steady(sampling: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in sampling.items() if key not in _VARIES}


def _measured(numbers: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """How far a probe's numbers are from those of processed logprobs; see `decide`."""
    for fact, name, wanted in (("slope_off", "slope", 1), ("bias_off", "bias_shift", 2)):
        for temperature, value in _pairs(numbers.get(name)):
            yield fact, abs(value * temperature - wanted)
    total = numbers.get("normalisation")
    if isinstance(total, Mapping):
        yield "highest", total.get("highest")
        yield "mass", total.get("sum")


def _pairs(values: Any) -> Iterable[tuple[float, float]]:
    for key, value in values.items() if isinstance(values, Mapping) else ():
        try:
            yield float(key), float(value)
        except (TypeError, ValueError):
            continue


def _absorb(each: Sum, value: Any, path: str) -> None:
    try:
        each.absorb(value)
    except InvalidValue as error:
        raise InvalidValue(f"facts: {error.message}", path=path) from error


def merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of several parts together; parts without any (`{}`) are passed over.

    Raises:
        InvalidValue: a part's facts cannot be read.
    """
    facts = Facts()
    for part in parts:
        if part:
            facts.absorb(part)
    return facts.to_json()
