"""The evidence of a dataset's part: what its card may state, summed while it is written.

Owns: how each fact follows from a record and its verdict.
Must not know: files, the manifest, how a card reads. It holds no clock and no ids.

Only what was recorded or judged is summed. Where nobody said something, that is counted, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from explorer.errors import InvalidValue
from explorer.export.dataset.fact_list import FACTS_VERSION, empty_sums
from explorer.export.dataset.tallies import Sum, told
from explorer.export.secret_review import Review
from explorer.records import Call, CallStatus, Certificate, EventKind, Grade, RolloutRecord
from explorer.trace.mask import raw_coincides
from explorer.trace.verdict import Judgement

# They differ from call to call and would hide what does not.
_VARIES = frozenset(("seed", "max_tokens", "max_completion_tokens", "max_output_tokens"))
PROVED, COINCIDES, ACCEPTED = "proved", "raw_at_temperature_one", "accepted_without_proof"


class Facts:
    """Sums the facts of rollouts, one after the other."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, Any]] = empty_sums()

    def to_json(self) -> dict[str, Any]:
        """All sums; equal rollouts in equal order give equal JSON."""
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
        for call in record.calls:
            self._call(record, judgement, call)
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
        sums["sampling"]["fixed"].add(told(rollout.sampling))
        sums["made"]["app_versions"].add(told(rollout.app_version))
        policy = judgement.policy
        sums["made"]["policies"].add(
            told({"name": policy.name, "version": policy.version, "sha256": policy.sha256})
        )

    def _call(self, record: RolloutRecord, judgement: Judgement, call: Call) -> None:
        sums = self._sums["calls"]
        sums["all"].add()
        sums["streamed"].add(call.stream)
        sums["injected"].add(call.injected)
        sums["repeats"].add(max(call.retry_count, 0))
        sums["dialects"].add(str(call.dialect))
        sums["statuses"].add(str(call.status))
        if call.failure_kind is not None:
            sums["failures"].add(str(call.failure_kind))
        sums["levels"].add(str(call.capture_level))
        decision = judgement.roles.get(call.call_id)
        sums["roles"].add(None if decision is None else str(decision.role))
        if call.prompt_delta is not None:
            self._sums["tokens"]["prompt"].add(call.prompt_delta.size)
        if sampled(call):
            self._sampled(record, judgement, call)

    def _sampled(self, record: RolloutRecord, judgement: Judgement, call: Call) -> None:
        sums, certificate = self._sums["sampling"], record.certificate_of(call)
        assert call.completion is not None  # it was asked
        self._sums["tokens"]["sampled"].add(call.completion.size)
        self._sums["model"]["served"].add(told(call.model_served))
        sums["calls"].add()
        sums["greedy"].add(call.greedy)
        sums["asked"].add(told(_steady(call.requested_sampling)))
        sums["sent"].add(told(_steady(call.submitted_sampling)))
        sums["seeded"].add(call.submitted_sampling.get("seed") is not None)
        for name in ("max_tokens", "max_completion_tokens"):
            sums["max_tokens"].add(call.submitted_sampling.get(name))
        for constraint in call.constraints:
            sums["constraints"].add(told(constraint))
        seen = {call.weight_version_start, call.weight_version_end} - {None}
        for version in seen:
            self._sums["weights"]["versions"].add(version)
        self._sums["weights"]["untold"].add(not seen)
        self._sums["weights"]["crossed"].add(len(seen) > 1)
        self._sums["weights"]["labels"].add(told(call.engine_weight_label))
        self._sums["certificates"]["calls"].add(_proved(certificate))
        mask = judgement.masks.get(call.call_id)
        if mask is not None and mask.supervised and judgement.trainable:
            basis = COINCIDES if raw_coincides(call, certificate) else ACCEPTED
            if certificate is not None and certificate.passing:
                basis = PROVED
            self._sums["certificates"]["trained"].add(basis, mask.supervised)

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


def _finding(code: str, grade: str) -> dict[str, str]:
    return {"code": code, "grade": grade}


def _steady(sampling: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in sampling.items() if key not in _VARIES}


def _proved(certificate: Certificate | None) -> Any:
    return certificate and {
        "passing": certificate.passing,
        "capture_level": str(certificate.capture_level),
        "logprobs": str(certificate.logprob_kind),
        "certifiable": certificate.certifiable,
    }


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
