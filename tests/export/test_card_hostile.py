"""Whatever a record or a person says: on a card it is text, and makes nothing."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from explorer.errors import InvalidValue
from explorer.export.card.card import card_text
from explorer.export.card.check import card_problems
from explorer.export.card.choice import CardChoice, checked_choice
from explorer.export.card.front import as_yaml
from explorer.export.card.words import plain, quoted, table
from explorer.export.dataset.manifest import Excluded
from explorer.records import RolloutRecord
from explorer.trace.policy import Policy
from tests.export.cards import CHOICE, body_of, changed, manifest_of, markdown, pieces, words
from tests.trace.build import CERTIFIED, make_call, override, record

ATTACKS = (
    "a|b",
    "`code`",
    "``` \n evil",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "---",
    "- item",
    "+ item",
    "1. item",
    "# head",
    "> quote",
    "===",
    "* * *",
    "\n---\nlicense: mit\n---\n",
    "[x](javascript:alert(1))",
    "![x](https://evil.example/p.png)",
    "[x]: https://evil.example",
    "<https://evil.example>",
    "https://evil.example",
    "www.evil.example",
    "mail@evil.example",
    "&lt;b&gt;&#60;",
    "\\| \\` \\[",
    "**bold** __bold__ _em_ *em* ~~no~~",
    "_a_ snake_case_name _",
    "$$x$$ :smile: {{x}} {% x %}",
    "a\tb\x00c\x1bd\x7f",
    "\u202eright to left\u200b\ufeff",
    "\u2028line\u2029",
    "\ud800",
    "    indented",
    "x" * 5000,
    "] | [",
    "\"quoted\" 'too'",
    "%yaml !!python/object/apply:os.system ['x']",
)
TEXT = st.one_of(
    st.sampled_from(ATTACKS),
    st.text(max_size=60),
    st.text(alphabet="|`<>[]()!#*_-=~:\\&;\n @.wW/+1{}$'\" ", max_size=60),
)


def shows(character: str) -> bool:
    """Whether a reader sees the character itself."""
    return character.isprintable() or character == " "


def seen(text: str) -> str:
    """What of a text can be told apart from its stand-ins: letters and digits of ASCII."""
    return re.sub(r"\(u\+[0-9a-f]{4,6}\)|[^a-z0-9]", "", text.lower())


@given(TEXT)
@example("\n\n# x")
def test_foreign_text_is_one_line_of_plain_text(text: str) -> None:
    shown = plain(text)
    assert "\n" not in shown
    assert "\r" not in shown
    assert shown == "" or [token.type for token in markdown().parse(shown)] == [
        "paragraph_open",
        "inline",
        "paragraph_close",
    ]
    assert list(pieces(shown)) == list(pieces("x" if shown else ""))
    # Extensions that other renderers have.
    assert "://" not in shown
    assert "www." not in shown.lower()
    assert not set(shown) & set("@|<>`[]*~${}\\!=^")
    assert all(
        unicodedata.category(each) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in shown
    )


def reads_as(text: str) -> str:
    """What a reader should see of a text: spaces that follow each other are one."""
    return re.sub(r" +", " ", text).strip(" ")


@pytest.mark.parametrize("attack", [text for text in ATTACKS if all(map(shows, text))])
def test_an_attack_that_can_be_seen_reads_as_it_was(attack: str) -> None:
    assert reads_as(words(plain(attack))[0]) == reads_as(attack)


@given(TEXT.filter(lambda text: all(map(shows, text))))
def test_text_that_can_be_seen_reads_as_it_was(text: str) -> None:
    shown = plain(text)
    if shown and not re.search(r"\(U\+", shown):
        assert reads_as(words(shown)[0]) == reads_as(text)


@given(TEXT, TEXT)
def test_a_cell_stays_a_cell(one: str, two: str) -> None:
    cells = [plain(one) or "-", plain(two) or "-"]
    made = table(("A", "B"), [cells, ["x", "y"]])
    expected = table(("A", "B"), [["x", "x"], ["x", "y"]])
    assert list(pieces(made)) == list(pieces(expected))


@given(st.text(alphabet=st.sampled_from("->#`=*_|1.)+ \n\tx<&[]:"), max_size=80))
@example("a\n---\nb")
@example("    code\n\n- x")
def test_a_persons_own_words_are_one_quotation(text: str) -> None:
    kinds = {kind for kind, _, _ in pieces(quoted(text))}
    assert kinds <= {
        "blockquote_open",
        "blockquote_close",
        "paragraph_open",
        "paragraph_close",
    }


def hostile(text: str) -> RolloutRecord:
    """A record that says it wherever a record can, without changing what is judged."""
    certificate = replace(
        CERTIFIED,
        failures=(text,),
        numbers={"flags": [text], "tokenizer_sha256": text, "slope": {text: text}},
    )
    call = make_call(
        "a",
        1,
        [1],
        [2],
        n_tools=1,
        model_served=text,
        requested_sampling={text: text, "n": {text: [text]}},
        submitted_sampling={text: text},
        constraints=(text,),
    )
    made = record(call, certificate=certificate, overrides=[override(text, "a")])
    named = dict.fromkeys(
        (
            *("run", "task", "group", "harness", "harness_version", "harness_config_sha256"),
            *("engine_kind", "engine_name", "engine_version", "model", "tokenizer_id"),
            *("chat_template_sha256", "app_version"),
        ),
        text,
    )
    return changed(made, **named, sampling={text: text})


def card_of(text: str) -> tuple[str, list[str]]:
    record_ = hostile(text)
    # What stands in the manifest itself is text that JSON can hold.
    text = text.encode("utf-8", "backslashreplace").decode()
    gone = (Excluded(text, text, text),)
    policy = Policy(name=text, train_greedy=True)
    made = manifest_of(record_, policy=policy, excluded=gone)
    made = replace(made, parts=tuple(replace(part, writer=text) for part in made.parts))
    card = card_text(made, CHOICE, None)
    return card, card_problems(card, made)


# Whatever is said, the card has the structure of one where only this is said.
QUIET = "quiet words, quiet"


@settings(max_examples=60, deadline=None)
@given(TEXT)
@example("snake_case")
@example("")
def test_no_record_changes_the_structure_of_a_card(text: str) -> None:
    card, problems = card_of(text)
    assert problems == []
    quiet, _ = card_of(QUIET)
    # Digests and our own reasons stand in code spans, and so do foreign ones of their form.
    expected = [each for each in pieces(body_of(quiet)) if each[0] != "code_inline"]
    assert [each for each in pieces(body_of(card)) if each[0] != "code_inline"] == expected
    assert card.split("\n---\n")[0] == quiet.split("\n---\n")[0]


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_of_a_list_makes_anything(attack: str) -> None:
    card, problems = card_of(attack)
    assert problems == []
    html = markdown().render(body_of(card))
    assert not re.search(
        r"<(?!/?(?:h1|h2|p|table|thead|tbody|tr|th|td|code|pre|em|ul|li)\b)", html
    )
    assert not re.search(r"<[^>]*\bon\w+=", html)
    assert "href=" not in html
    fences = [line for line in card.split("\n") if re.match(r"\s*(```|~~~|---|===)", line)]
    assert len(fences) == 2 + 2 * card.count("```python") + 2 * card.count("```sh")


@settings(max_examples=100, deadline=None)
@given(TEXT, TEXT, TEXT)
def test_words_of_people_are_refused_or_stand_as_they_are(
    title: str, prompt: str, described: str
) -> None:
    choice = CardChoice(title, "mit", gated=True, gate_prompt=prompt, description=described)
    try:
        choice = checked_choice(choice)
    except InvalidValue:
        return
    made = manifest_of(hostile(QUIET))
    card = card_text(made, choice, None)
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["pretty_name"] == choice.title
    assert front.get("extra_gated_prompt", "") == choice.gate_prompt
    assert front["license"] == "mit"
    assert card_problems(card, made) == []
    assert seen(choice.title) in seen(words(body_of(card))[0])
    kinds = [kind for kind, _, _ in pieces(body_of(card))]
    assert (
        kinds.count("heading_open")
        == len([1 for line in card.split("\n") if line[:3] == "## "]) + 1
    )
    assert "hr" not in kinds
    assert "html_block" not in kinds
    assert "html_inline" not in kinds


@given(st.text(max_size=200))
@example("no")
@example("1e3")
@example("0o7")
@example("2026-01-01")
@example("~")
@example("a\n---\nb: c\n---\n")
@example("\x85\u2028\u2029")
def test_front_matter_is_read_back_as_it_was(text: str) -> None:
    found = as_yaml({"license": "mit", "pretty_name": text, "extra_gated_prompt": text})
    assert found.startswith("---\n")
    assert found.count("\n---\n") == 1
    assert len(found.rstrip("\n").split("\n")) == 5
    told = text.encode("utf-8", "backslashreplace").decode()
    assert yaml.safe_load(found.split("---\n")[1]) == {
        "license": "mit",
        "pretty_name": told,
        "extra_gated_prompt": told,
    }
