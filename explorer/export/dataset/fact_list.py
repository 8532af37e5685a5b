"""Which facts a dataset's part has, what each means, and how it is summed.

Owns: the list; the reference page and the reader follow it.
Must not know: how a fact follows from a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from explorer.export.dataset.tallies import Count, Distinct, Range, Tally, Total

FACTS_VERSION = 1
# Closed vocabularies are written out whole.
_ALL = 250


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact: `kind` is a key of `KINDS`."""

    kind: str
    meaning: str


KINDS: dict[str, tuple[type[Count | Total | Range | Tally | Distinct], str]] = {
    "count": (Count, "a whole number"),
    "total": (Total, "a sum, null when it is out of range"),
    "range": (Range, "`[least, greatest]`, null when there was no number"),
    "tally": (Tally, "`values`: the most frequent 20 as `[value, number]`; `more`: the rest"),
    "all": (Tally, "the same, of a closed list: all of them"),
    "distinct": (Distinct, "`at_least`, `at_most`, and `marks` (digests) while they are few"),
}


def _facts(kind: str, **meanings: str) -> dict[str, Fact]:
    return {name: Fact(kind, meaning) for name, meaning in meanings.items()}


FACTS: dict[str, dict[str, Fact]] = {
    "rollouts": {
        **_facts("count", all="Rollouts.", trainable="Those that may train."),
        **_facts("all", purpose="Rollouts by purpose.", ok="By success; null: nobody said."),
        **_facts("distinct", runs="Runs.", tasks="Tasks.", groups="Groups."),
        **_facts("count", without_task="Rollouts without a task.", without_group="… a group."),
        **_facts("range", time_us="From the first beginning to the last seal."),
    },
    "harness": _facts("tally", used="Rollouts by name, version and digest of the settings."),
    "model": {
        **_facts("tally", used="Rollouts by model and tokenizer."),
        **_facts("tally", served="Calls that sampled, by the model that the reply names."),
        **_facts("tally", tokenizers="Rollouts by digest of the tokenizer; null: not told."),
        **_facts("tally", chat_templates="Rollouts by digest of the template as served."),
    },
    "engine": {
        **_facts("tally", used="Rollouts by kind, name and version."),
        **_facts("tally", flags="Rollouts by the engine's own settings, where it tells them."),
        **_facts("all", streaming="Rollouts by how streamed replies reached the harness."),
        **_facts("all", token_in="Rollouts by whether prompts began with exact earlier ids."),  # noqa: S106
    },
    "certificates": {
        **_facts("all", calls="Calls that sampled, by what was proved; null: nothing."),
        **_facts("distinct", used="Certificates that those calls rest on."),
        **_facts("range", probe_calls="Calls of one probe."),
        **_facts("range", slope_off="Slope times temperature, less 1, without sign."),
        **_facts("range", bias_off="Shift times temperature, less the bias, without sign."),
        **_facts("range", highest="Highest logprob in a probe; above 0 is none."),
        **_facts("range", mass="Sum of the listed probabilities."),
        **_facts("tally", failures="Rollouts by what a certificate says is missing."),
        **_facts("all", trained="Tokens that train, by why their logprobs are believed."),
    },
    "sampling": {
        **_facts("count", calls="Calls that sampled.", greedy="Those that were greedy."),
        **_facts("tally", asked="Calls by what the harness asked for, without what varies."),
        **_facts("tally", sent="Calls by what the engine was sent, without what varies."),
        **_facts("tally", fixed="Rollouts by what their maker fixed."),
        **_facts("range", max_tokens="Cap of sampled tokens that was sent."),
        **_facts("count", seeded="Calls with a seed."),
        **_facts("tally", constraints="Calls by what bound the sampling."),
    },
    "weights": {
        **_facts("range", versions="Weight versions that a call that sampled saw."),
        **_facts("count", untold="Calls that sampled without one.", crossed="With two."),
        **_facts("tally", labels="Calls by the engine's own name of the weights."),
    },
    "rewards": {
        **_facts("count", scored="Rollouts with a reward.", null="Without; never read as 0."),
        **_facts("range", range="Of the rewards."),
        **_facts("total", sum="Of the rewards."),
    },
    "tokens": {
        **_facts("count", prompt="Prompt tokens, each stored once.", sampled="Sampled tokens."),
        **_facts("count", supervised="Tokens that train."),
        **_facts("all", reasons="Tokens of rollouts that train by mask reason, each once."),
        **_facts("all", reasons_elsewhere="The same of the other rollouts; none trains."),
    },
    "calls": {
        **_facts("count", all="Calls.", streamed="Those that were asked for as a stream."),
        **_facts("all", dialects="By wire.", statuses="By end.", failures="By failure."),
        **_facts("all", levels="By capture level.", roles="By role."),
        **_facts(
            "count", injected="Written by the proxy.", repeats="Requests joined as retries."
        ),
    },
    "checks": {
        **_facts("all", found="Findings by code and grade.", rollouts="Rollouts with one."),
        **_facts("count", clean="Rollouts with no finding above INFO."),
        **_facts("count", contradicted="Calls whose bytes say something else."),
        **_facts("count", open_calls="Calls that had not ended at the seal."),
    },
    "people": {
        **_facts("all", overrides="Overrides by kind."),
        **_facts("count", overridden="Rollouts with an override."),
        **_facts("count", reviewed="Rollouts whose secret scan was told here."),
        **_facts("all", secrets="What looked like a secret in them, by decision."),
        **_facts("count", paths="Paths with a person's name in them; they do not block."),
    },
    "made": {
        **_facts("tally", app_versions="Rollouts by the version that recorded them."),
        **_facts("tally", policies="Rollouts by mask policy: name, version, digest."),
    },
}


def empty_sums() -> dict[str, dict[str, Any]]:
    """Every fact with nothing in it."""
    return {
        section: {
            name: Tally(_ALL) if fact.kind == "all" else KINDS[fact.kind][0]()
            for name, fact in facts.items()
        }
        for section, facts in FACTS.items()
    }
