"""A card says what was measured, and is found out when it does not fit its manifest."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import DatasetCard

from explorer.errors import InvalidValue
from explorer.export.card.card import SECTIONS, card_text
from explorer.export.card.check import card_problems
from explorer.export.card.choice import (
    CardChoice,
    checked_choice,
    choice_from_json,
    choice_to_json,
)
from explorer.export.card.evidence import JUDGED
from explorer.export.card.front import loadable, size_category
from explorer.export.card.licences import LICENCES
from explorer.export.dataset.manifest import Excluded, Manifest
from explorer.records import EventKind, Purpose
from explorer.trace.findings import FINDINGS
from explorer.trace.policy import Policy
from tests.export.cards import CHOICE, changed, extra, manifest_of, shard
from tests.export.datasets import forked
from tests.export.test_facts import MEASURED
from tests.trace.build import event, override, record, two_turns


def front_of(card: str) -> dict[str, Any]:
    found = yaml.safe_load(card.split("---\n")[1])
    assert isinstance(found, dict)
    return found


def section(card: str, title: str) -> str:
    assert title in dict(SECTIONS)
    return card.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def whole() -> Manifest:
    """Three rollouts: two train, one without a reward; one was made for an evaluation."""
    known = {
        "harness": "pi",
        "harness_version": "1.2",
        "harness_config_sha256": "cd" * 32,
        "chat_template_sha256": "ef" * 32,
        "model": "tiny",
        "tokenizer_id": "bytes",
    }
    first = changed(record(*two_turns(), certificate=MEASURED), **known, task="t")
    second = changed(
        record(*forked(), certificate=MEASURED, events=[event(EventKind.CLOSED)]),
        rollout_id="r2",
        **known,
    )
    third = changed(
        record(*two_turns(), purpose=Purpose.EVAL, overrides=[override("exclude_call", "b")]),
        rollout_id="r3",
        **known,
    )
    gone = (Excluded("r9", "rollout_open", "open"), Excluded("r8", "secrets_undecided", "x"))
    return manifest_of(first, second, third, excluded=gone)


def test_hub_06_the_card_lists_what_the_data_rest_on() -> None:
    card = card_text(whole(), CHOICE, "me/data")
    harness = section(card, "Harness and model")
    assert f"| name: pi, config_sha256: {'cd' * 32}, version: 1.2 | 3 |" in harness
    assert "| model: tiny, tokenizer_id: bytes | 3 |" in harness
    assert f"chat template as served | {'ef' * 32} (3) |" in harness
    assert "| Weight versions | 7 |" in section(card, "How it was sampled")
    masks = section(card, "Mask policy and reasons")
    assert f"| default/1 | `{Policy().sha256}` | 3 | nothing |" in masks
    assert "| `sampled` | 10 | The engine sampled it in this call, and it trains. |" in masks
    scan = section(card, "Secret scan")
    assert "| Rollouts whose written ids were decoded | 3 |" in scan
    assert "| Rollouts left out because of one | 1 |" in scan
    assert "| What people decided | not measured |" in scan


def test_the_certificate_is_told_by_its_numbers() -> None:
    engine = section(card_text(whole(), CHOICE, None), "Engine and logprob certificate")
    assert "| Slope off by at most | 0.01 |" in engine
    assert "| Bias shift off by at most | 0.1 |" in engine
    assert "| Calls of one probe | 12 |" in engine
    assert "| a passing certificate | 10 |" in engine
    assert "logprobs: processed" in engine
    bare = section(card_text(manifest_of(record(*two_turns())), CHOICE, None), engine_title())
    assert "| Slope off by at most | not measured |" in bare
    untold = manifest_of(record(*two_turns(), certificate=None))
    nothing = section(card_text(untold, CHOICE, None), engine_title())
    assert "| nothing was proved | 2 |" in nothing
    assert "No token trains." in nothing


def engine_title() -> str:
    return "Engine and logprob certificate"


def test_counts_and_what_was_left_out() -> None:
    card = card_text(whole(), CHOICE, None)
    facts = section(card, "Facts")
    assert "| Rollouts | 3 |" in facts
    assert "| … that may train | 2 |" in facts
    assert "| Reward | 2 rollouts: 1; 1 rollout without one (null, which is not 0) |" in (
        facts.replace(", mean 1", "")
    )
    gone = section(card, "What was left out and why")
    assert "Asked for and not in it: 2 rollouts." in gone
    assert "| `rollout_open` | 1 | It was still open. |" in gone
    assert "| `eval_purpose` | 1 | It was made for an evaluation, which never trains. |" in gone
    assert "exclude_call (1)" in section(card, "Revisions it was made under")


def test_checks_that_passed_are_those_that_were_made() -> None:
    checks = section(card_text(manifest_of(record(*two_turns())), CHOICE, None), "Checks")
    passed = re.search(r"found in no rollout \((\d+)\): (.*)\.\n", checks)
    assert passed is not None
    names = passed[2].replace("`", "").split(", ")
    assert len(names) == int(passed[1]) > 30
    assert "chain_mismatch" in names
    assert not [name for name in names if name.startswith("atif_") or name == "turn_mismatch"]


def test_every_check_of_the_judge_is_counted_and_no_other() -> None:
    from explorer.trace import atif, checks, rollout_checks, verdict

    def codes(*modules: Any) -> set[str]:
        text = "".join(Path(module.__file__).read_text() for module in modules)
        return {name for name in FINDINGS if f'"{name}"' in text}

    judged = codes(checks, rollout_checks, verdict)
    assert judged == set(JUDGED)
    assert codes(atif).isdisjoint(judged)


def test_what_nobody_measured_is_said_to_be_so() -> None:
    made = manifest_of(record(*two_turns()), facts=False)
    card = card_text(made, CHOICE, None)
    for title in ("How it was sampled", engine_title(), "Harness and model", "Checks"):
        assert section(card, title).strip().startswith("Not measured")
    assert "Evidence is there for 0 of 1 rollouts" in card
    assert card_problems(card, made) == []


def test_tags_are_true() -> None:
    tags = {
        "all": front_of(card_text(whole(), CHOICE, None))["tags"],
        "unscored": front_of(
            card_text(
                manifest_of(record(*two_turns(), events=[event(EventKind.CLOSED)])),
                CHOICE,
                None,
            )
        )["tags"],
        "nothing": front_of(card_text(manifest_of(), CHOICE, None))["tags"],
    }
    assert tags["all"] == ["agent-traces", "rl-rollouts", "rollout-explorer", "token-level"]
    assert tags["unscored"] == ["agent-traces", "rollout-explorer", "token-level"]
    assert tags["nothing"] == ["rollout-explorer"]


def test_every_file_of_a_config_is_named_and_the_rest_is_no_config() -> None:
    made = replace(
        manifest_of(record(*two_turns())),
        extras={
            "sft": extra("sft", 2),
            "dpo": extra("dpo", 0),
            "sessions": extra("sessions", 1, "lines", "jsonl"),
        },
    )
    front = front_of(card_text(made, CHOICE, None))
    assert [config["config_name"] for config in front["configs"]] == [
        "sequences",
        "rollouts",
        "calls",
        "sft",
    ]
    assert front["configs"][0] == {
        "config_name": "sequences",
        "default": True,
        "data_files": [{"split": "train", "path": [shard("sequences", 1).path]}],
    }
    assert sum(config.get("default", False) for config in front["configs"]) == 1


def test_without_training_rows_the_record_is_the_default() -> None:
    made = manifest_of(record(*two_turns(), purpose=Purpose.EVAL))
    card = card_text(made, CHOICE, None)
    front = front_of(card)
    assert front["configs"][0]["config_name"] == "rollouts"
    assert front["configs"][0]["default"] is True
    assert "`sequences` has no row" in section(card, "What is in it")
    assert section(card, "How to train on it").strip() == "Nothing in this dataset may train."
    assert card_problems(card, made) == []
    empty = manifest_of()
    assert "configs" not in front_of(card_text(empty, CHOICE, None))
    assert card_problems(card_text(empty, CHOICE, None), empty) == []


@pytest.mark.parametrize(
    ("rows", "word"),
    [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**6, "1M<n<10M"), (10**13, "n>1T")],
)
def test_the_size_is_the_hubs_word(rows: int, word: str) -> None:
    assert size_category(rows) == word


def test_the_gate_and_another_licence_stand_in_front() -> None:
    choice = CardChoice(
        "T",
        "other",
        licence_name="Ours: 1",
        licence_link="https://example.org/licence",
        gated=True,
        gate_prompt="Say who you are.\nPlease: no harm.",
    )
    card = card_text(whole(), choice, None)
    front = front_of(card)
    assert (front["license"], front["license_name"]) == ("other", "Ours: 1")
    assert front["extra_gated_prompt"] == choice.gate_prompt
    assert "[Ours&#58; 1]" not in card  # a colon before a space is plain
    assert "| Licence | [Ours: 1](https://example.org/licence) |" in card
    assert card_problems(card, whole()) == []
    assert "extra_gated_prompt" not in front_of(card_text(whole(), CHOICE, None))


def test_the_hub_s_own_client_reads_the_card() -> None:
    choice = replace(
        CHOICE, title="# A: 'title' — \"x\"", gated=True, gate_prompt="a\n---\nb: c"
    )
    card = card_text(whole(), choice, "me/data")
    read: Any = DatasetCard(card, ignore_metadata_errors=False)
    assert read.data.to_dict() == front_of(card)
    assert read.data.pretty_name == choice.title
    assert read.text.lstrip("\n").startswith("# &#35; A: ")


def test_links_lead_to_the_explorer_that_has_the_rollouts() -> None:
    choice = replace(CHOICE, link_base="https://lab.example/explorer/")
    links = section(card_text(whole(), choice, None), "Where its rollouts are")
    assert "- [r2](https://lab.example/explorer/rollouts/r2)" in links
    assert "Where its rollouts are" not in card_text(whole(), CHOICE, None)


def test_the_same_manifest_and_choice_give_the_same_card() -> None:
    assert card_text(whole(), CHOICE, "a/b") == card_text(whole(), CHOICE, "a/b")


# -- the choice


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"title": "  "}, "title", "needs a title"),
        ({"title": "x" * 121}, "title", "at most 120"),
        ({"title": "a\nb"}, "title", r"U\+000A"),
        ({"title": "a\u202eb"}, "title", r"U\+202E"),
        ({"licence": ""}, "licence", "nobody may use it"),
        ({"licence": "unknown"}, "licence", "no licence id"),
        ({"licence": "MIT"}, "licence", "no licence id"),
        ({"licence": "other"}, "licence_name", "name and a link"),
        ({"licence": "other", "licence_name": "x"}, "licence_link", "name and a link"),
        ({"licence_name": "x"}, "licence_name", "has its own"),
        ({"link_base": "javascript:alert(1)"}, "link_base", "https://"),
        ({"link_base": "https://a@evil/"}, "link_base", "user's name"),
        ({"link_base": "https://a/)x"}, "link_base", "brackets"),
        ({"link_base": "https://[::1"}, "link_base", "https://"),
        ({"gate_prompt": "hello"}, "gate_prompt", "gated"),
        ({"description": "a\x00b"}, "description", r"U\+0000"),
        ({"description": "x" * 5001}, "description", "at most 5000"),
        ({"gated": "yes"}, "gated", "true or false"),
        ({"title": 3}, "title", "is a text"),
    ],
)
def test_a_choice_that_breaks_a_rule_is_refused_in_words(
    changes: dict[str, Any], path: str, words: str
) -> None:
    with pytest.raises(InvalidValue, match=words) as caught:
        checked_choice(replace(CHOICE, **changes))
    assert caught.value.details["path"] == path


def test_a_choice_travels_as_json() -> None:
    choice = replace(CHOICE, gated=True, description="a\nb 👩‍👩‍👧", link_base="https://x/")
    assert choice_from_json(choice_to_json(choice)) == checked_choice(choice)
    with pytest.raises(InvalidValue, match="has no 'colour'"):
        choice_from_json(choice_to_json(choice) | {"colour": "red"})
    with pytest.raises(InvalidValue, match="needs a licence"):
        choice_from_json({"title": "x"})
    with pytest.raises(InvalidValue, match="is an object"):
        choice_from_json([])


def test_the_usual_licences_come_first_and_each_makes_a_card() -> None:
    assert next(iter(LICENCES)) == "cc-by-4.0"
    assert "unknown" not in LICENCES
    for name in LICENCES:
        if name != "other":
            card = card_text(manifest_of(), CardChoice("T", name), None)
            assert front_of(card)["license"] == name


@pytest.mark.parametrize("name", ["a/b/c", "a b", "/a", "a/", "a/b\n", 'a/b"', "../x"])
def test_a_name_that_is_none_stands_on_no_card(name: str) -> None:
    with pytest.raises(InvalidValue, match="no name of a dataset"):
        card_text(whole(), CHOICE, name)


# -- the check


def test_a_card_goes_with_its_manifest() -> None:
    made = replace(whole(), extras={"sft": extra("sft", 3)})
    assert card_problems(card_text(made, CHOICE, "me/data"), made) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("license: cc-by-4.0", "license: none", "no licence"),
        ("license: cc-by-4.0", "license: other", "without its name"),
        ("sequences/part-00000", "sequences/part-00001", "`sequences` has other files"),
        ("- config_name: calls", "- config_name: rolls", "no config `calls`"),
        ("n<1K", "1K<n<10K", "size is not that"),
        ("| Rollouts | 3 |", "| Rollouts | 4 |", "counts other rollouts"),
        ("each once | 10 |", "each once | 11 |", "counts other rollouts or tokens"),
        ("SHA-256 of `manifest.json`: `", "SHA-256 of `manifest.json`: `0", "another manifest"),
        ("---\n", "", "no front matter"),
        ("license:", "? [", "no front matter"),
        ("license: cc-by-4.0", "license: 2026-99-99", "no front matter"),
        ("  default: true\n", "", "other files"),
    ],
)
def test_a_card_that_says_something_else_is_found_out(old: str, new: str, problem: str) -> None:
    made = whole()
    card = card_text(made, CHOICE, None)
    assert old in card
    found = card_problems(card.replace(old, new, 1), made)
    assert any(problem in words for words in found), found


def test_a_card_of_an_earlier_writing_is_found_out() -> None:
    one = manifest_of(record(*two_turns()))
    assert any(
        "another manifest" in words
        for words in card_problems(card_text(one, CHOICE, None), whole())
    )


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("rollouts.all", "rollouts"),
        ("rollouts.trainable", "rollouts that may train"),
        ("calls.all", "calls"),
        ("tokens.supervised", "tokens that train"),
    ],
)
def test_evidence_that_does_not_fit_its_rollouts_is_found_out(path: str, words: str) -> None:
    made = whole()
    section_, name = path.split(".")
    facts = dict(made.parts[0].facts)
    facts[section_] = facts[section_] | {name: facts[section_][name] + 1}
    forged = replace(made, parts=(replace(made.parts[0], facts=facts),))
    found = card_problems(card_text(forged, CHOICE, None), forged)
    assert len(found) == 1
    assert re.search(rf"part 1: its evidence counts \d+ {words}, its rollouts \d+", found[0])


def test_a_card_made_to_cost_much_is_read_cheaply() -> None:
    made = whole()
    bomb = "a: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40)
    )
    card = f"---\n{bomb}configs: *a39\nsize_categories: *a39\n---\n"
    assert card_problems(card, made)
    assert card_problems("---\n" + "[" * 100_000 + "\n---\n", made) == [
        "the card has no front matter that can be read"
    ]
    assert card_problems("x" * 3_000_000, made) == ["the card is too long to be one"]
    assert loadable(made)
