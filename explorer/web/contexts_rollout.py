"""What each tab of a rollout says: frozen dataclasses, every field documented.

Owns: the contexts of the rollout's tabs. Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Frame, RolloutRow, markup, page, said


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


@dataclass(frozen=True, slots=True)
class BreakNote:
    """Where a root left the sequence it might have continued."""

    offset: int = said("Tokens shared with the nearest earlier call.")
    nearest: str = said("That call, as labelled in the tree.")
    expected: str = said("The token that stands there in the nearest call, decoded.")
    actual: str = said("The token that stands there in this prompt, decoded.")
    cause: str = said("Why, in words, as far as it can be named.")
    unrelated: bool = said("Whether it never was the same conversation.")


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One line of the turn tree."""

    call_id: str = said("The call.")
    label: str = said("Its number on its path; a prime marks each alternative.")
    role: str = said("`agent`, `subagent`, `auxiliary`, `discarded`, `failed` or `prompt`.")
    words: str = said("Role and state in words.")
    glyph: str = said("Branch lines in front of a fork's children.")
    indent: int = said("Steps of indentation.")
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
    rank: int | None = said("Rank among the recorded alternatives, 1 is the likeliest.")
    rank_text: str = said("The rank as shown.")
    alternatives: tuple[Alternative, ...] = said("Recorded alternatives, likeliest first.")
    role: str = said("Role of the call.")
    call_id: str = said("The call.")
    call_href: str = said("Address of the call's request.")
    href: str = said("Address of this token.")


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
    metric: str = said("`logprob`, `rank` or `mask`.")
    mask: bool = said("Whether masked sampled tokens are hatched.")
    whitespace: bool = said("Whether spaces and line ends are marked.")
    ids: bool = said("Whether token ids are printed.")
    base: str = said("Address of the rollout.")
    total_tokens: int = said("Tokens of the branch.")
    sampled_tokens: int = said("Of these, sampled.")
    trained_tokens: int = said("Of these, tokens that train.")
    outliers: int = said("Sampled tokens with −logp of 4 nats or more.")
    shown_tokens: int = said("Tokens on this page.")
    sections: tuple[TurnSection, ...] = said("The tokens, turn by turn.")
    minimap: tuple[Bar, ...] = said("Trained and masked spans, and outliers.")
    legend: Legend = said("What the colours mean.")
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


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a message."""

    name: str = said("The tool.")
    arguments: str = said("Its arguments in their original spelling, cut.")


@dataclass(frozen=True, slots=True)
class Message:
    """One message as people read it."""

    role: str = said("`system`, `user`, `assistant`, `tool` or what the caller wrote.")
    name: str = said("Name or tool call id, if any.")
    text: str = said("The text, cut to the limit of the page.")
    reasoning: str = said("Reasoning text, cut, when the reply has some.")
    tool_calls: tuple[ToolCall, ...] = said("Tool calls.")
    cut_chars: int = said("Characters left out; the call's request has them.")


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """The messages that one call added."""

    turn: int = said("Number of the call on the branch, from 1.")
    label: str = said("Its number in the turn tree.")
    call_id: str = said("The call.")
    short_call: str = said("Its id, shortened.")
    call_href: str = said("Address of its request.")
    tokens_href: str = said("Address of its first sampled token.")
    role: str = said("Role of the call.")
    sampled_tokens: int = said("Tokens the engine sampled.")
    trained_tokens: int = said("Of these, tokens that train.")
    finish_reason: str = said("Why the engine stopped, or `unknown`.")
    source: str = said("`messages` of the raw bodies, or `tokens` decoded, or `preview`.")
    skipped: int = said("New messages left out here; the request has them.")
    messages: tuple[Message, ...] = said("What is new, then the reply.")
    problem: str = said("Why the call failed, empty when it did not.")


@page
@dataclass(frozen=True, slots=True)
class ConversationPage:
    """`/rollouts/{rollout_id}/conversation`: messages along one branch."""

    template: ClassVar[str] = "conversation.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    tree: tuple[TreeRow, ...] = said("Every call.")
    branches: tuple[BranchChoice, ...] = said("Every branch.")
    branch: str = said("Last call of the branch shown, empty without calls.")
    turns: tuple[ConversationTurn, ...] = said("Turns on this page.")
    total_turns: int = said("Turns of the branch.")
    more_href: str | None = said("Address of the next turns, null at the end.")


@dataclass(frozen=True, slots=True)
class TimingRow:
    """One call in time."""

    label: str = said("The call's number in admission order.")
    role: str = said("Role of the call.")
    call_href: str = said("Address of its request.")
    start_ms: float = said("Start after the first call, in milliseconds.")
    total_ms: float = said("Duration seen by the harness.")
    total_text: str = said("The duration as shown.")
    engine_ms: float | None = said("Of it, in the engine; null when not recorded.")
    engine_text: str = said("The engine's share as shown.")
    tokens: int = said("Sampled tokens.")
    rate: float | None = said("Sampled tokens per second of engine time.")
    failed: bool = said("Whether the call failed.")
    x: float = said("Left edge of its bar, 0 to 1000.")
    width: float = said("Width of its bar.")
    engine_width: float = said("Width of the engine's share.")


@page
@dataclass(frozen=True, slots=True)
class TimingPage:
    """`/rollouts/{rollout_id}/timing`: a waterfall and its table."""

    template: ClassVar[str] = "timing.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    rows: tuple[TimingRow, ...] = said("Calls in admission order.")
    span_ms: float = said("From the first start to the last end.")
    span_text: str = said("The span as shown.")
    engine_ms: float = said("Engine time of all calls that recorded it.")
    engine_text: str = said("The engine time as shown.")
    unrecorded: int = said("Calls without a recorded engine time.")
    open_calls: int = said("Calls still in flight.")


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call as a line."""

    call_id: str = said("The call.")
    short_call: str = said("Its id, shortened.")
    href: str = said("Address of its request.")
    sequence: int = said("Number in admission order.")
    dialect: str = said("Wire dialect.")
    stream: bool = said("Whether the harness asked for a stream.")
    status: str = said("Where its life ended.")
    failure: str = said("What went wrong, empty when nothing did.")
    role: str = said("Role of the call, `–` for a refused one.")
    capture_level: str = said("What its record can support.")
    prompt_tokens: int | None = said("Prompt tokens, null when unknown.")
    sampled_tokens: int | None = said("Sampled tokens, null when unknown.")
    trained_tokens: int = said("Of these, tokens that train.")
    finish_reason: str = said("Why the engine stopped.")
    duration_text: str = said("Duration seen by the harness.")
    retries: int = said("Retries joined to it.")
    preview: str = said("Beginning of the reply.")


@page
@dataclass(frozen=True, slots=True)
class RequestsPage:
    """`/rollouts/{rollout_id}/requests`: every call."""

    template: ClassVar[str] = "requests.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    rows: tuple[CallRow, ...] = said("Calls of this page, in admission order.")
    total: int = said("Calls that ended.")
    first: int = said("Place of the first one listed, from 0.")
    next_href: str | None = said("Address of the next page, null on the last.")
    open_calls: int = said("Calls still in flight, not listed.")


@dataclass(frozen=True, slots=True)
class BodyView:
    """One raw body, as text."""

    kind: str = said("`request`, `submitted` or `reply`.")
    title: str = said("What it is.")
    size_bytes: int = said("Its size.")
    size_text: str = said("The size as shown.")
    sha256: str = said("SHA-256 of the exact bytes.")
    headers: tuple[tuple[str, str], ...] = said("Headers, without credentials.")
    text: str = said("The body, indented, numbers in their original spelling.")
    note: str = said("What was done to show it.")
    cut_chars: int = said("Characters left out.")
    all_href: str | None = said("Address that shows it whole, null when it is.")


@page
@dataclass(frozen=True, slots=True)
class RequestPage:
    """`/rollouts/{rollout_id}/requests/{call_id}`: one call, raw."""

    template: ClassVar[str] = "request.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    call: CallRow = said("The call.")
    facts: tuple[tuple[str, str], ...] = said("Recorded facts by name.")
    rule: str = said("Rule that decided its role.")
    why: str = said("The evidence for the role.")
    changed: tuple[tuple[str, str, str], ...] = said("Sampling fields: name, asked, sent.")
    bodies: tuple[BodyView, ...] = said("Its raw bodies.")
    tokens_href: str | None = said("Address of its tokens, null when it has none.")
    previous: str | None = said("Address of the call before.")
    following: str | None = said("Address of the call after.")


@page
@dataclass(frozen=True, slots=True)
class GroupPage:
    """`/rollouts/{rollout_id}/group`: the samples of the same task."""

    template: ClassVar[str] = "group.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    name: str = said("Group or task that joins them.")
    rows: tuple[RolloutRow, ...] = said("Samples by attempt.")
    current: str = said("Id of the rollout at hand.")
    n_rewarded: int = said("Samples with a reward.")
    mean_text: str = said("Mean reward as shown.")
    zero_variance: bool = said("All rewards are equal.")


@dataclass(frozen=True, slots=True)
class Fact:
    """One named fact."""

    name: str = said("What it is.")
    value: str = said("The value, `unknown` when it was not recorded.")
    known: bool = said("Whether it was recorded.")


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """Sampling of one or several equal calls."""

    calls: str = said("The calls, by number.")
    asked: str = said("As the harness asked.")
    sent: str = said("As sent to the engine.")
    versions: str = said("Weight version at start and end.")


@page
@dataclass(frozen=True, slots=True)
class ProvenancePage:
    """`/rollouts/{rollout_id}/provenance`: what made these tokens."""

    template: ClassVar[str] = "provenance.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    engine: tuple[Fact, ...] = said("Engine, model, tokenizer, template.")
    certificate: tuple[Fact, ...] = said("What was proved about its logprobs, and when.")
    policy: tuple[Fact, ...] = said("Switches of the judge.")
    sampling: tuple[SamplingRow, ...] = said("Sampling asked and sent, equal calls joined.")
    metadata: tuple[Fact, ...] = said("What the creator of the rollout wrote.")
    budgets: tuple[Fact, ...] = said("Budgets given.")


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One finding."""

    code: str = said("Stable code.")
    grade: str = said("FATAL, WARN or INFO.")
    message: str = said("What is the case.")
    hint: str = said("What to do about it.")
    where: str = said("What it concerns, in words.")
    call_href: str | None = said("Address of the call's request.")
    token_href: str | None = said("Address of the first token it concerns.")


@page
@dataclass(frozen=True, slots=True)
class FindingsPage:
    """`/rollouts/{rollout_id}/findings`: worst first."""

    template: ClassVar[str] = "findings.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    findings: tuple[FindingRow, ...] = said("Findings, worst first.")
    masked: tuple[tuple[str, int, str], ...] = said("Sampled tokens by mask reason.")


@dataclass(frozen=True, slots=True)
class CustodyRow:
    """One call in the hash chain."""

    short_call: str = said("The call's id, shortened.")
    call_href: str = said("Address of its request.")
    sequence: int = said("Number in admission order.")
    parent: str = said("Stored parent, shortened, `–` for a root.")
    tokens: int | None = said("Prompt and sampled tokens.")
    chain_hash: str = said("Chain hash as recorded, `not recorded` if it was not.")


@page
@dataclass(frozen=True, slots=True)
class CustodyPage:
    """`/rollouts/{rollout_id}/custody`: the hash chain as recorded."""

    template: ClassVar[str] = "custody.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    rows: tuple[CustodyRow, ...] = said("Calls in admission order.")
    recorded: int = said("Calls with a recorded chain hash.")
