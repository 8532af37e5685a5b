"""How the tokens came about and what was proved: the sections in the middle of a card.

Owns: their words. Only what facts hold is said; what nobody measured is said to be so.
Must not know: files, the manifest's form beyond policies and parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from explorer.export.card.subject import CardSubject
from explorer.export.card.words import (
    NOT_MEASURED,
    code,
    distinct_words,
    number,
    plain,
    spread,
    table,
    tally_rows,
    tally_words,
    value_words,
)
from explorer.export.dataset.facts import ACCEPTED, COINCIDES, PROVED
from explorer.records import MaskReason
from explorer.trace.findings import FINDINGS, PRECEDENCE
from explorer.trace.policy import DEFAULT_POLICY
from explorer.trace.reason_words import MEANINGS

_GRADES = ("FATAL", "WARN", "INFO")
# From here on, the table is about a trajectory of the harness's own, which is not compared.
_NOT_JUDGED = PRECEDENCE["no_agent_sequence"]
JUDGED = tuple(name for name, place in PRECEDENCE.items() if place < _NOT_JUDGED)
_BASIS = {
    PROVED: "a passing certificate",
    COINCIDES: "raw logprobs, which are the processed ones at temperature 1 without filters",
    ACCEPTED: "accepted without proof, by the policy or by a person",
}


def measured(section: Callable[[CardSubject], str]) -> Callable[[CardSubject], str]:
    """A section that says so where no part has facts."""

    def told(subject: CardSubject) -> str:
        if subject.measured:
            return section(subject)
        return "Not measured: no part of this dataset has evidence with it."

    return told


@measured
def sampling(subject: CardSubject) -> str:
    """What was asked for, and what the engine was sent."""
    sums, weights = subject.facts["sampling"], subject.facts["weights"]
    calls = sums["calls"]
    rows = [("asked for", *cells) for cells in tally_rows(sums["asked"], none="nothing")]
    rows += [("sent to the engine", *cells) for cells in tally_rows(sums["sent"])]
    words = [
        f"Calls that sampled tokens: {number(calls)}. What the harness asked for and what the "
        "engine was sent, without seeds and caps, which differ from call to call:",
        table(("Sampling", "Values", "Calls"), rows),
        table(
            ("What", "Measured"),
            (
                ("Cap of sampled tokens that was sent", spread(sums["max_tokens"], "none")),
                ("Calls with a seed", number(sums["seeded"])),
                ("Greedy calls", number(sums["greedy"])),
                ("Calls under a constraint, by what it was", tally_words(sums["constraints"])),
                ("Fixed by the rollout's maker", tally_words(sums["fixed"])),
                ("Weight versions", spread(weights["versions"], "none was told")),
                ("Calls without a weight version", number(weights["untold"])),
                ("Calls that saw two weight versions", number(weights["crossed"])),
                ("The engine's own name of its weights", tally_words(weights["labels"])),
            ),
        ),
    ]
    return "\n\n".join(words)


@measured
def engine(subject: CardSubject) -> str:
    """The engine, what a probe proved of its logprobs, and on what trained tokens rest."""
    facts, sums = subject.facts, subject.facts["certificates"]
    rows = [
        ("Engine", tally_words(facts["engine"]["used"])),
        ("Its own settings", tally_words(facts["engine"]["flags"])),
        ("Model that replies name", tally_words(facts["model"]["served"])),
        ("Certificates that calls rest on", distinct_words(sums["used"])),
        ("Calls of one probe", spread(sums["probe_calls"])),
        ("Slope off by at most", _worst(sums["slope_off"])),
        ("Bias shift off by at most", _worst(sums["bias_off"])),
        ("Highest logprob in a probe", _worst(sums["highest"])),
        ("Sum of listed probabilities", spread(sums["mass"])),
        ("What certificates say is missing", tally_words(sums["failures"])),
    ]
    proved = [
        (value_words(value, none="nothing was proved"), number(n))
        for value, n in sums["calls"]["values"]
    ]
    trained = [
        (_BASIS.get(str(value), plain(value)), number(n))
        for value, n in sums["trained"]["values"]
    ]
    words = [
        "A probe measures from outside what an engine's logprobs are. *Processed* means: the "
        "probabilities that tokens were drawn with. A slope times its temperature is then 1, a "
        "bias of 2 shifts by 2 over the temperature.",
        table(("What", "Measured"), rows),
        table(("Calls that sampled, by what was proved", "Calls"), proved or [("none", "0")]),
        table(("Tokens that train, by what their logprobs rest on", "Tokens"), trained)
        if trained
        else "No token trains.",
    ]
    return "\n\n".join(words)


def _worst(value: Any) -> str:
    return NOT_MEASURED if value is None else number(value[1])


@measured
def harness(subject: CardSubject) -> str:
    """Who made the calls, and over which wire."""
    facts = subject.facts
    calls, model = facts["calls"], facts["model"]
    blocks = [
        table(("Harness", "Rollouts"), tally_rows(facts["harness"]["used"])),
        table(("Model and tokenizer", "Rollouts"), tally_rows(model["used"])),
        table(
            ("What", "Told"),
            (
                ("Digest of the tokenizer", tally_words(model["tokenizers"])),
                ("Digest of the chat template as served", tally_words(model["chat_templates"])),
                ("Calls by wire", tally_words(calls["dialects"])),
                ("Calls by end", tally_words(calls["statuses"])),
                ("Calls that failed, by why", tally_words(calls["failures"])),
                ("Calls by capture level", tally_words(calls["levels"])),
                ("Calls by role", tally_words(calls["roles"], none="none: refused")),
                ("Calls that were asked for as streams", number(calls["streamed"])),
                ("Streamed replies, by rollout", tally_words(facts["engine"]["streaming"])),
                (
                    "Prompts begun with earlier ids (token-in), by rollout",
                    tally_words(facts["engine"]["token_in"]),
                ),
                ("Replies that the proxy wrote", number(calls["injected"])),
                ("Requests joined as retries", number(calls["repeats"])),
                ("Recorded by version", tally_words(facts["made"]["app_versions"])),
            ),
        ),
    ]
    return "\n\n".join(blocks)


def masks(subject: CardSubject) -> str:
    """The policies, and tokens by mask reason."""
    manifest, facts = subject.manifest, subject.facts
    used: dict[str, int] = {}
    for entry in manifest.rollouts:
        used[entry.policy_sha256] = used.get(entry.policy_sha256, 0) + 1
    rows = [
        (
            f"{plain(policy.get('name'))}/{plain(policy.get('version'))}",
            code(digest),
            number(used.get(digest, 0)),
            _switches(policy),
        )
        for digest, policy in sorted(manifest.policies.items())
    ]
    words = [
        "A token trains only where the engine sampled it, its logprob is known, and the policy "
        "lets it. Every other token has the reason why not.",
        table(("Policy", "Digest of its switches", "Rollouts", "Other than default"), rows),
    ]
    if subject.measured:
        words.append(_reasons("Tokens of rollouts that train", facts["tokens"]["reasons"]))
        elsewhere = facts["tokens"]["reasons_elsewhere"]
        if elsewhere["values"]:
            words.append(_reasons("Tokens of the others; none of them trains", elsewhere))
        words.append(
            "Each token is counted once. In `sequences`, where paths share calls, a token that "
            f"trains in another row has the reason {code('owned_by_other_row')}."
        )
    return "\n\n".join(words)


def _switches(policy: Mapping[str, Any]) -> str:
    usual = DEFAULT_POLICY.describe()
    other = [
        f"{plain(name)}: {plain(value)}"
        for name, value in sorted(policy.items())
        if name not in ("name", "version") and value != usual.get(name)
    ]
    return ", ".join(other) or "nothing"


def _reasons(title: str, tally: Mapping[str, Any]) -> str:
    meanings = {str(reason): words for reason, words in MEANINGS.items()}
    rows = [
        (code(str(value)), number(n), meanings.get(str(value), ""))
        for value, n in tally["values"]
    ]
    assert str(MaskReason.SAMPLED) in meanings  # the closed list
    return table((title, "Tokens", "Meaning"), rows)


@measured
def checks(subject: CardSubject) -> str:
    """What was found, and what was looked for in vain."""
    sums, total = subject.facts["checks"], subject.measured
    rollouts = {_key(value): n for value, n in sums["rollouts"]["values"]}
    found = [(_key(value), n) for value, n in sums["found"]["values"]]
    found.sort(key=lambda item: (_rank(item[0][1]), -item[1], item[0]))
    rows = [
        (
            code(name),
            plain(grade),
            number(n),
            number(rollouts.get((name, grade), 0)),
            FINDINGS[name].meaning if name in FINDINGS else "",
        )
        for (name, grade), n in found
    ]
    seen = {name for (name, _), _ in found}
    clear = [name for name in JUDGED if name not in seen and FINDINGS[name].grade != "INFO"]
    words = [
        f"Every rollout was checked for {len(JUDGED)} things. {number(sums['clean'])} of "
        f"{number(total)} have nothing above INFO. FATAL forbids training on a rollout.",
        table(("Found", "Grade", "Times", "Rollouts", "Meaning"), rows)
        if rows
        else "Nothing was found.",
        f"Of those above INFO, looked for and found in no rollout ({len(clear)}): "
        + (", ".join(code(name) for name in clear) or "none")
        + f"; and {len(set(JUDGED) - seen) - len(clear)} that are only INFO.",
        "Calls where the engine's bytes, as far as they were kept and read again, say "
        f"something else than the record: {number(sums['contradicted'])}. Calls that had not "
        f"ended when their rollout was sealed: {number(sums['open_calls'])}.",
    ]
    return "\n\n".join(words)


def _key(value: Any) -> tuple[str, str]:
    if not isinstance(value, Mapping):
        return str(value), ""
    return str(value.get("code")), str(value.get("grade"))


def _rank(grade: str) -> int:
    return _GRADES.index(grade) if grade in _GRADES else len(_GRADES)


def secrets(subject: CardSubject) -> str:
    """What was scanned, what people decided, what was proved of the written ids."""
    people = subject.facts["people"]
    proved = {"rollouts": 0, "ids_decoded": 0, "ids_unknown": 0}
    for part in subject.manifest.parts:
        for name in proved:
            proved[name] += part.secrets.get(name, 0)
    rows = [
        ("Rollouts whose written ids were decoded", number(proved["rollouts"])),
        ("Ids that were decoded", number(proved["ids_decoded"])),
        ("Ids that no vocabulary has, so nobody could decode", number(proved["ids_unknown"])),
        (
            "Rollouts left out because of one",
            number(subject.manifest.left_out.get("secrets_undecided", 0)),
        ),
    ]
    if people["reviewed"]:
        rows += [
            ("Rollouts whose findings are counted here", number(people["reviewed"])),
            ("What looked like a secret in them, by decision", tally_words(people["secrets"])),
            ("Paths with a person's name in them (do not block)", number(people["paths"])),
        ]
    else:
        rows.append(("What people decided", NOT_MEASURED))
    return (
        "Texts and decoded ids were scanned for what looks like a secret. A rollout with "
        "something that nobody let go is left out whole. After writing, the ids were read from "
        "the finished files and decoded once more. A scanner finds forms that it knows, and "
        "nothing else.\n\n" + table(("What", "Measured"), rows)
    )
