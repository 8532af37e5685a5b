"""What the other tabs of a rollout say, every field documented.

Owns: the contexts of conversation, timing, requests, group, provenance and findings.
Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Choice, Frame, RolloutRow, page, said
from explorer.web.contexts_compare import GroupPair
from explorer.web.contexts_messages import Message
from explorer.web.contexts_rollout import BranchChoice, BreakNote, Header, TreeRow
from explorer.web.contexts_secrets import SecretsPart


@dataclass(frozen=True, slots=True)
class EarlierMessage:
    """A message that was sent once more, in one line."""

    role: str = said("Its role.")
    text: str = said("How it begins.")


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
    weights: str = said("Which weights sampled it and how old they are; empty: nobody told.")
    source: str = said("`messages` of the raw bodies, or `tokens` decoded, or `preview`.")
    earlier: int = said("Messages that the request sent before the ones shown.")
    skipped: int = said("Of these, new ones that were too many to show.")
    folded: tuple[EarlierMessage, ...] = said("The last of the earlier ones, in one line each.")
    echo: str = said("How the reply before came back, when it was not as it was given.")
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
    broke: BreakNote | None = said("Where this branch left an earlier call, if it did.")
    turns: tuple[ConversationTurn, ...] = said("Turns on this page.")
    total_turns: int = said("Turns of the branch.")
    more_href: str | None = said("Address of the next turns, null at the end.")


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
    samples: tuple[Choice, ...] = said("Samples that can be compared, by id.")
    pairs: tuple[GroupPair, ...] = said("The one at hand beside its nearest samples.")
    uncompared: int = said("Other samples that are not compared on this page.")


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


@dataclass(frozen=True, slots=True)
class VersionRow:
    """What one weight version sampled of a rollout."""

    version: int | None = said("Weight version; null: not known.")
    sampled: int = said("Sampled tokens.")
    trained: int = said("Of these, tokens that the mask lets train.")
    calls: int = said("Calls that have such tokens.")
    behind: int | None = said("Versions behind the one announced last; null: not known.")
    age: str = said("The age in words, or why there is none.")


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
    versions: tuple[VersionRow, ...] = said("The rollout's tokens by weight version.")
    newest: int | None = said("The weight version announced last; null: nobody told any.")
    metadata: tuple[Fact, ...] = said("What the creator of the rollout wrote.")
    budgets: tuple[Fact, ...] = said("How streams are served, and budgets given.")
    ending: tuple[Fact, ...] = said("How the harness ended, as told at close.")
    stdout_tail: str = said("The end of its standard output, as told at close.")
    stderr_tail: str = said("The end of its standard error, likewise.")
    drift_href: str = said("Address of the check of its prompts against a chat template.")


@dataclass(frozen=True, slots=True)
class DriftSide:
    """One side of the first difference between two prompts."""

    piece: str = said("The token there, decoded.")
    token_id: int | None = said("Its id, null where this side ends.")
    text: str = said("What follows from there, decoded, cut.")


@dataclass(frozen=True, slots=True)
class DriftRow:
    """One call, rendered again."""

    turn: str = said("Its number in the turn tree, `–` when it is not in it.")
    call_href: str = said("Address of its request.")
    result: str = said("`match`, `mismatch` or `not checkable`.")
    reason: str = said("Why it could not be checked.")
    arguments: str = said(
        "What came of each form of its tool calls' arguments, empty without any."
    )
    prompt_tokens: int | None = said("Tokens of the engine's prompt.")
    position: int | None = said("The first token that differs, null when none does.")
    before: str = said("The text just before it, which both sides share.")
    engine: DriftSide | None = said("The engine's side.")
    rendered: DriftSide | None = said("The side rendered here.")


@page
@dataclass(frozen=True, slots=True)
class DriftPage:
    """`/rollouts/{rollout_id}/drift`: its prompts beside a local rendering."""

    template: ClassVar[str] = "drift_page.html"
    frame: Frame = said("What surrounds the page.")
    renderer: str = said("Whose template was used, empty when there is none.")
    template_sha256: str = said("Digest of that template.")
    served_template: str = said("Digest of the engine's template, empty when not told.")
    same_template: bool | None = said("Whether they are equal, null when one is unknown.")
    rows: tuple[DriftRow, ...] = said("Calls in admission order.")
    first: int = said("Number of the first call here.")
    total: int = said("Calls of the rollout.")
    more_href: str | None = said("Address of the next calls, null at the end.")


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One finding."""

    code: str = said("Stable code.")
    grade: str = said("FATAL, WARN or INFO.")
    message: str = said("What is the case.")
    hint: str = said("What to do about it.")
    where: str = said("What it concerns, in words.")
    call_href: str | None = said("Address of the call's request.")
    token_href: str | None = said("Address of the first token it concerns, or of its call's.")


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """What one person decided."""

    what: str = said("The decision, in words.")
    concerns: str = said("The turn, and the tokens if it is about some.")
    call_href: str | None = said("Address of the call's request.")
    who: str = said("Who decided.")
    when: str = said("When.")
    reason: str = said("Why, in their words.")


@dataclass(frozen=True, slots=True)
class DecisionForm:
    """The form that records a decision."""

    action: str = said("Where it is sent.")
    kinds: tuple[Choice, ...] = said("What can be decided.")
    kind: str = said("The one that is chosen.")
    calls: tuple[Choice, ...] = said("The calls.")
    call: str = said("The one that is chosen, empty for none.")
    roles: tuple[Choice, ...] = said("Roles that can be given.")
    start: str = said("First token, if a link named one.")
    end: str = said("The token after the last, if a link named one.")


@page
@dataclass(frozen=True, slots=True)
class FindingsPage:
    """`/rollouts/{rollout_id}/findings`: worst first."""

    template: ClassVar[str] = "findings.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    findings: tuple[FindingRow, ...] = said("Findings, worst first.")
    masked: tuple[tuple[str, int, str], ...] = said("Sampled tokens by mask reason.")
    trajectory: tuple[Fact, ...] = said(
        "The harness's own trajectory and whether it agrees, empty when none was given."
    )
    decisions: tuple[DecisionRow, ...] = said("What people decided, the newest first.")
    form: DecisionForm = said("The form to decide more.")
    secrets: SecretsPart | None = said(
        "What looks like a secret; null on a server that does not look for any."
    )
