"""What a rollout's header, turn tree and tokens tab say, every field documented.

Owns: those contexts. Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Frame, markup, page, said


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's verdict, in the words of the page."""

    trainable: bool = said("Whether the rollout may train.")
    text: str = said("The verdict in one line.")
    supervised_tokens: int = said("Tokens that train.")
    generated_tokens: int = said("Sampled tokens of every call.")
    n_calls: int = said("Calls that contribute supervised tokens.")
    reasons: tuple[str, ...] = said("Every reason against training, the first is shown.")
    notices: tuple[str, ...] = said("What a reader of any export must be told.")
    href: str = said("Address of the findings.")


@dataclass(frozen=True, slots=True)
class Tab:
    """One tab of the rollout."""

    name: str = said("Last part of its address.")
    label: str = said("Text of the tab.")
    href: str = said("Its address; the branch is kept.")
    count: int | None = said("A number worth showing beside the label.")
    current: bool = said("Whether it is the page at hand.")


@dataclass(frozen=True, slots=True)
class Download:
    """One file that can be downloaded."""

    kind: str = said("training_trace or capture_audit: what a grant for it names.")
    label: str = said("Name of the file kind.")
    href: str = said("Address of the file.")
    enabled: bool = said("Whether it can be had now.")
    reason: str = said("Why not, empty when it can.")
    about: str = said("What it contains.")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The rollout's place among the samples of its group."""

    position: int = said("Its number in the group, from 1.")
    size: int = said("Samples in the group.")
    previous: str | None = said("Address of the one before, same tab.")
    following: str | None = said("Address of the one after, same tab.")


@dataclass(frozen=True, slots=True)
class LiveBar:
    """What is told of a rollout that is still running."""

    href: str = said("Stream of what happens from here on (server-sent events).")
    open_calls: int = said("Calls in flight.")
    budgets: tuple[str, ...] = said("What was used of each budget, in words.")


@dataclass(frozen=True, slots=True)
class Header:
    """What every tab of a rollout shows at its top."""

    rollout_id: str = said("Public id.")
    short_id: str = said("Shortened id, as shown.")
    run: str = said("Run it belongs to.")
    run_href: str = said("Address of the run.")
    task: str | None = said("Task it attempted.")
    harness: str | None = said("Harness that drove it.")
    model: str = said("Model that sampled it.")
    purpose: str = said("`train` or `eval`.")
    status: str = said("`open`, `closed` or `deleted`.")
    ok: bool | None = said("Whether it ended as it should, null when nobody said.")
    outcome: str = said("How it ended, in one word.")
    reward: float | None = said("Latest reward, null when none was given.")
    reward_text: str = said("The reward as shown.")
    verdict: Verdict = said("The judge's verdict.")
    n_fatal: int = said("FATAL findings.")
    n_warn: int = said("WARN findings.")
    tabs: tuple[Tab, ...] = said("The tabs.")
    neighbours: Neighbours | None = said("Place in the group, null when it is alone.")
    group_href: str = said("Address of the group tab.")
    downloads: tuple[Download, ...] = said("What can be downloaded.")
    labels: tuple[str, ...] = said("Labels that people gave the whole rollout.")
    notes_href: str = said("Address of the notes tab.")
    live: LiveBar | None = said("Null once the rollout is closed.")
    hidden: str = said("What of the rollout these pages hide, in words; empty for nothing.")
    weights: str = said("Weight versions of the tokens that train, and the oldest's age now.")


@dataclass(frozen=True, slots=True)
class BreakNote:
    """Where a prompt left the sequence it might have continued."""

    kind: str = said(
        "`break`: it left its history; `again`: the same prompt once more; `fork`: another "
        "continuation; `apart`: a conversation of its own."
    )
    offset: int = said("Tokens shared with the nearest earlier call.")
    nearest: str = said("That call, as labelled in the tree.")
    expected: str = said("The token that stands there in the nearest call, decoded.")
    actual: str = said("The token that stands there in this prompt, decoded.")
    cause: str = said("Why, in words, as far as it can be named; empty for a fork.")
    href: str = said("Address of that token in the nearest call.")


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One line of the turn tree."""

    call_id: str = said("The call.")
    label: str = said("Its number on its path; a prime marks each alternative.")
    role: str = said("`agent`, `subagent`, `auxiliary`, `discarded`, `failed` or `prompt`.")
    words: str = said("Role and state in words.")
    rails: str = said("Lines in front of it that tell the branches of a fork apart.")
    indent: int = said("Steps of indentation.")
    after: str = said("Number of the call it continues, where the lines do not show it.")
    forks: int = said("Continuations, when there is more than one.")
    note: str = said("What is worth a second line: the rule, or what failed.")
    rule: str = said("Rule that decided the role.")
    why: str = said("The evidence for the role.")
    sampled_tokens: int = said("Tokens the engine sampled; for a prompt, its tokens.")
    trained_tokens: int = said("Of these, tokens that train.")
    bar: float = said("Length of the bar, 0 to 1 of the longest call.")
    href: str = said("Address of the call on its branch.")
    on_branch: bool = said("Whether it lies on the branch shown.")
    broke: BreakNote | None = said("Where its prompt left an earlier call, if it did.")
    compare_href: str | None = said("Address of it beside the call it parts from, if any.")
    compare_label: str = said("That link's text: both numbers.")


@dataclass(frozen=True, slots=True)
class BranchChoice:
    """One branch of the tree, root to leaf."""

    leaf: str = said("The last call of the branch.")
    label: str = said("How the page names it.")
    href: str = said("Its address, with the same view.")
    current: bool = said("Whether it is the one shown.")


@dataclass(frozen=True, slots=True)
class TurnSection:
    """A run of tokens of one kind from one call."""

    kind: str = said("`prompt`, `environment` or `sampled`.")
    css: str = said("Role that colours its rule.")
    title: str = said("Who speaks.")
    turn: int = said("Number of the call on the branch, from 1.")
    label: str = said("Its number in the turn tree.")
    call_id: str = said("The call it came with.")
    short_call: str = said("The call's id, shortened.")
    call_href: str = said("Address of the call's request.")
    start: int = said("Index of its first token in the branch.")
    count: int = said("Tokens.")
    trained: int = said("Of these, tokens that train.")
    note: str = said("Why nothing trains, when the whole call is masked.")
    hatched: bool = said("Whether the whole section is sampled and masked.")
    blocks: str = markup("Its tokens, marked up; not in the twin, which has the ids.")
    token_ids: list[int] = said("Ids of the tokens on the page.")
    shown: int = said("Tokens up to the last one on the page.")
    more_href: str | None = said("Address that shows the rest, null when all are shown.")
    more_part: str | None = said("Address of the fragment with the rest.")
    on_sight: bool = said("Whether the rest loads when the reader comes near.")


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle of the minimap in thousandths of its width."""

    x: float = said("Left edge.")
    width: float = said("Width.")
    css: str = said("What it marks.")


@dataclass(frozen=True, slots=True)
class Legend:
    """What the colours mean."""

    swatches: tuple[tuple[str, str], ...] = said("CSS class and text of each bin.")
    semantics: str = said("Kind of the logprobs and temperature, `unknown` if not recorded.")
    rank_known: bool = said("Whether alternatives were recorded, so that ranks exist.")
    entropy: tuple[tuple[str, str], ...] = said("CSS class and lower edge of entropy bins.")
    versions: tuple[tuple[str, str], ...] = said("CSS class and name of weight versions.")
    delta: tuple[tuple[str, str], ...] = said("CSS class and text of bins of δ.")
    ratio: tuple[tuple[str, str], ...] = said("CSS class and text of bins of the ratio exp δ.")
    delta_text: str = said("Whose logprobs δ is against, and its noise; empty: nobody's.")


@dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative the engine weighed."""

    text: str = said("The token, with control characters visible.")
    token_id: int | None = said("Its id, null when the engine gave only text.")
    logprob: float | None = said("Its logprob in nats.")
    probability: float | None = said("exp of it.")
    chosen: bool = said("Whether it was sampled.")


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """Everything recorded about one token."""

    index: int = said("Position in the branch.")
    turn: int = said("Number of the call on the branch, from 1.")
    label: str = said("Its number in the turn tree.")
    offset: int = said("Position within the section.")
    token_id: int = said("Id.")
    text: str = said("The token, with control characters visible.")
    hex_bytes: str = said("Its bytes in hexadecimal, `unknown` without a vocabulary.")
    bytes_note: str = said("What the bytes are when they are not whole characters.")
    special: bool = said("Whether it is a special token.")
    sampled: bool = said("Whether the engine sampled it.")
    trained: bool = said("Whether it trains.")
    reason: str = said("Code of the mask reason.")
    why: str = said("The reason in one line.")
    logprob: float | None = said("Logprob in nats; null when there is none.")
    logprob_text: str = said("The logprob as shown.")
    probability: float | None = said("exp of it.")
    trainer: float | None = said("Logprob that a trainer told last; null where none did.")
    delta: float | None = said("Trainer − rollout logprob in nats.")
    trainer_text: str = said("The trainer's logprob, δ and ratio as shown; empty: none told.")
    rank: int | None = said("Rank among the recorded alternatives, 1 is the likeliest.")
    entropy: float | None = said("Entropy of its recorded alternatives in nats, a lower bound.")
    entropy_text: str = said("The entropy in words.")
    weight_text: str = said("The weight version that sampled it.")
    rank_text: str = said("The rank as shown.")
    alternatives: tuple[Alternative, ...] = said("Recorded alternatives, likeliest first.")
    role: str = said("Role of the call.")
    call_id: str = said("The call.")
    call_href: str = said("Address of the call's request.")
    href: str = said("Address of this token.")
    notes: tuple[str, ...] = said("What people wrote about a span that holds it.")
    note_href: str = said("The form that writes about it.")
    decide_href: str | None = said("Form to leave it out of training, None if not sampled.")


@dataclass(frozen=True, slots=True)
class WorstToken:
    """One of the least likely sampled tokens."""

    index: int = said("Position on the branch.")
    text: str = said("The token, with control characters visible.")
    logprob: float = said("Its logprob in nats.")
    logprob_text: str = said("The logprob as shown.")
    label: str = said("Its turn, as labelled in the tree.")
    trained: bool = said("Whether it trains.")
    href: str = said("Address of the token.")


@dataclass(frozen=True, slots=True)
class OffToken:
    """One of the tokens that a trainer and the engine disagree about most."""

    index: int = said("Position on the branch.")
    text: str = said("The token, with control characters visible.")
    delta: float = said("Trainer − rollout logprob in nats.")
    delta_text: str = said("δ as shown.")
    label: str = said("Its turn, as labelled in the tree.")
    trained: bool = said("Whether it trains.")
    href: str = said("Address of the token.")


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A token on another branch."""

    label: str = said("Its turn, as labelled in the tree.")
    logprob: float = said("Its logprob in nats.")
    logprob_text: str = said("The logprob as shown.")
    href: str = said("Address of the token.")


@dataclass(frozen=True, slots=True)
class TurnNumbers:
    """What was sampled in one turn, in numbers."""

    label: str = said("The turn, as labelled in the tree.")
    start: int = said("Its first sampled token.")
    sampled: int = said("Sampled tokens.")
    trained: int = said("Of these, tokens that train.")
    outliers: int = said("Of these, with −logp of 4 nats or more.")
    mean_text: str = said("Mean −logp in nats, as shown.")
    p99_text: str = said("99th percentile of −logp.")
    worst_text: str = said("Largest −logp.")
    entropy_text: str = said("Mean entropy of the recorded alternatives.")


@page
@dataclass(frozen=True, slots=True)
class TokensPage:
    """`/rollouts/{rollout_id}/tokens`: the rollout token by token."""

    template: ClassVar[str] = "tokens.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    tree: tuple[TreeRow, ...] = said("Every call.")
    branches: tuple[BranchChoice, ...] = said("Every branch.")
    branch: str = said("Last call of the branch shown, empty without calls.")
    metric: str = said("`logprob`, `rank`, `entropy`, `version`, `mask`, `delta` or `ratio`.")
    mask: bool = said("Whether masked sampled tokens are hatched.")
    whitespace: bool = said("Whether spaces and line ends are marked.")
    ids: bool = said("Whether token ids are printed.")
    base: str = said("Address of the rollout.")
    total_tokens: int = said("Tokens of the branch.")
    sampled_tokens: int = said("Of these, sampled.")
    trained_tokens: int = said("Of these, tokens that train.")
    outliers: int = said("Sampled tokens with −logp of 4 nats or more.")
    far_off: int = said("Sampled tokens with |δ| of 0.7 nats or more.")
    shown_tokens: int = said("Tokens on this page.")
    broke: BreakNote | None = said("Where this branch left an earlier call, if it did.")
    sections: tuple[TurnSection, ...] = said("The tokens, turn by turn.")
    minimap: tuple[Bar, ...] = said("Trained and masked spans, and outliers.")
    legend: Legend = said("What the colours mean.")
    worst: tuple[WorstToken, ...] = said("The least likely sampled tokens, the worst first.")
    furthest: tuple[OffToken, ...] = said("The tokens with the greatest |δ|, the worst first.")
    elsewhere: Elsewhere | None = said(
        "The least likely token of the agent on another branch, null when it is on this one."
    )
    turns: tuple[TurnNumbers, ...] = said("The first turns in numbers: the chart as a table.")
    turns_left_out: int = said("Turns that the table has no line for.")
    problem: str = said("Why there are no tokens to show, empty when there are.")
    inspected: TokenFacts | None = said("The token that the address names with `t`.")


@page
@dataclass(frozen=True, slots=True)
class SectionPart:
    """A later part of a folded section, loaded on demand."""

    template: ClassVar[str] = "section_part.html"
    frame: Frame = said("What surrounds the page.")
    section: TurnSection = said("The part.")


@page
@dataclass(frozen=True, slots=True)
class InspectPage:
    """`/rollouts/{rollout_id}/tokens/inspect`: one token."""

    template: ClassVar[str] = "inspect_page.html"
    frame: Frame = said("What surrounds the page.")
    token: TokenFacts = said("The token.")
