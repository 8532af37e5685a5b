"""What each page says: frozen dataclasses, every field documented.

Owns: the contexts of the home page, the engine page and help, and the parts that all
pages share. A template sees exactly one context; its JSON twin is the same object.
Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

PAGES: list[type[Any]] = []


def said(help_text: str) -> Any:
    """A field with its documentation."""
    return field(metadata={"help": help_text})


def markup(help_text: str) -> Any:
    """A field that only the page has: the twin carries the same facts as data."""
    return field(metadata={"help": help_text, "markup": True})


def page(cls: type[Any]) -> type[Any]:
    """Register a context that a template renders."""
    PAGES.append(cls)
    return cls


@dataclass(frozen=True, slots=True)
class Crumb:
    """One step of the breadcrumb line."""

    label: str = said("Text of the step.")
    href: str | None = said("Address, or null for the page itself.")


@dataclass(frozen=True, slots=True)
class Taking:
    """Whether the reader may take one kind of document of a rollout."""

    kind: str = said("training_trace, capture_audit or raw.")
    allowed: bool = said("Whether they may, now.")
    words: str = said("Why, in words.")
    ask_href: str = said("Where to sign in, to ask for a grant or to see a request.")
    ask_label: str = said("What is done there.")


@dataclass(frozen=True, slots=True)
class Frame:
    """What surrounds every page."""

    title: str = said("Title of the document and its main heading.")
    twin: str = said("Address of this page's JSON twin, with the same query.")
    section: str = said("Part of the site: home, runs, rollouts, search, engine or help.")
    crumbs: tuple[Crumb, ...] = said("Breadcrumb line, the outermost first.")
    app_version: str = said("Version of the application that made the page.")
    alert: str = said("What everybody must know at once, empty when all is well.")
    banner: str = said("A sentence about this server that stands on every page, or nothing.")
    console: bool = said("Whether the SQL console is on, so that a link to it leads somewhere.")
    who: str = said("Who the reader is to this server, empty where that need not be said.")
    signed_in: bool = said("Whether there is a session to sign out of.")
    sign_in_href: str = said("Address to sign in at, empty where there is nothing to offer.")
    direct_href: str = said("This page outside of the frame it is shown in, else empty.")
    edits: bool = said("Whether the reader may label, note and decide.")
    operates: bool = said("Whether the reader may do what an operator may.")
    grants: bool = said("Whether the reader may ask for grants or decide about them.")
    datasets: bool = said("Whether there are pages about datasets for the reader.")
    taking: tuple[Taking, ...] = said("What the reader may take of this rollout, if not all.")
    commands: tuple[Command, ...] = markup("How a program asks for this page, as commands.")


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One rollout as a line of a list."""

    rollout_id: str = said("Public id.")
    short_id: str = said("Shortened id, as shown.")
    href: str = said("Address of the rollout page.")
    run: str = said("Run it belongs to.")
    run_href: str = said("Address of the run.")
    task: str | None = said("Task it attempted.")
    group: str | None = said("Group it is compared in.")
    attempt: int | None = said("Number of the attempt within its group.")
    purpose: str = said("`train` or `eval`.")
    harness: str | None = said("Harness that drove it.")
    model: str = said("Model that sampled it.")
    status: str = said("`open`, `closed` or `deleted`.")
    ok: bool | None = said("Whether it ended as it should, null when nobody said.")
    reward: float | None = said("Latest reward, null when none was given.")
    reward_text: str = said("The reward as shown.")
    trainable: bool | None = said("Verdict; null until it has been judged.")
    supervised_tokens: int | None = said("Tokens that train; null until judged.")
    generated_tokens: int = said("Sampled tokens of all its calls.")
    share: float | None = said("Supervised of generated tokens, 0 to 1.")
    share_text: str = said("The share as shown.")
    reason: str = said("First reason against training, empty when there is none.")
    n_warn: int | None = said("WARN findings; null until judged.")
    n_calls: int = said("Calls that ended.")
    n_failed: int = said("Of these, failed, aborted or refused.")
    n_findings: int | None = said("FATAL and WARN findings; null until judged.")
    n_fatal: int | None = said("FATAL findings; null until judged.")
    version_low: int | None = said("Lowest weight version of its calls, null when untold.")
    version_high: int | None = said("Highest weight version of its calls.")
    behind: int | None = said("Versions its oldest call is behind; null where not known.")
    delta_p99: float | None = said("Quantile 99 % of the size of δ; null: no trainer told.")
    delta_p99_text: str = said("The same as shown.")
    delta_outside: float | None = said("Share of training tokens outside the band of ratios.")
    delta_outside_text: str = said("The same as shown.")
    n_crossed: int = said("Calls that ended under another version than they began with.")
    created: str | None = said("When it was created, ISO 8601.")
    age: str = said("How long ago, in its largest unit.")


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run as a line of a list."""

    run: str = said("Name of the run.")
    href: str = said("Address of the run.")
    n_rollouts: int = said("Rollouts, without deleted ones.")
    n_open: int = said("Of these, still open.")
    n_trainable: int = said("Of these, judged trainable.")
    n_calls: int = said("Calls that ended.")
    generated_tokens: int = said("Sampled tokens.")
    mean_length: float | None = said("Sampled tokens a rollout, null without rollouts.")
    mean_length_text: str = said("The mean as shown.")
    n_rewarded: int = said("Rollouts with a reward.")
    reward_mean: float | None = said("Mean of those rewards.")
    reward_text: str = said("The mean as shown.")
    supervised_tokens: int = said("Tokens that train, of rollouts judged trainable.")
    n_judged: int = said("Rollouts that were judged.")
    share: float | None = said("Those of the judged rollouts' sampled tokens; null without.")
    share_text: str = said("The share as shown.")
    n_findings: int | None = said("FATAL and WARN findings; null until one is judged.")
    n_fatal: int | None = said("FATAL findings; null until one is judged.")
    last_created: str | None = said("When its newest rollout was created, ISO 8601.")
    age: str = said("How long ago that was.")


@dataclass(frozen=True, slots=True)
class EngineCard:
    """What is known about the engine in use."""

    known: bool = said("Whether a certificate of an engine is on record.")
    name: str = said("Kind and name of the engine.")
    version: str = said("Its version, or `unknown`.")
    model: str = said("Its model, or `unknown`.")
    passing: bool = said("Whether its certificate lets calls count as trainable.")
    certifiable: bool = said("Whether such an engine can be certified at all.")
    logprob_kind: str = said("What its logprobs were proved to be.")
    capture_level: str = said("`tokens`, `logprobs` or `text`.")
    measured: str | None = said("When it was probed, ISO 8601.")
    certificate_id: str | None = said("Id of the certificate.")
    failures: tuple[str, ...] = said("In words, why it is lower than it could be.")
    sentence: str = said("The verdict on the engine in one sentence.")


@dataclass(frozen=True, slots=True)
class StoreCard:
    """Health of the store."""

    path: str = said("File that holds everything.")
    size_bytes: int = said("Size of the file.")
    size_text: str = said("The size as shown.")
    free_text: str = said("Free space on its disk.")
    quarantined: int = said("Records that could not be written and were set aside.")
    spilling: bool = said("Whether records go to the spill journal at the moment.")
    refused_for_space: bool = said("Whether new rollouts are refused for lack of space.")
    schema_version: int = said("Version of the stored format.")
    messages: tuple[str, ...] = said("Sentences that need a person's attention.")


@dataclass(frozen=True, slots=True)
class Command:
    """A command that can be copied."""

    label: str = said("What it does.")
    text: str = said("The command.")


@dataclass(frozen=True, slots=True)
class ViewLink:
    """A saved view: a named filter of the rollout list."""

    name: str = said("Name of the view, as shown.")
    href: str = said("Address of the list.")
    query: str = said("Its query string.")
    who: str = said("Who saved it, as they said.")
    drop_name: str = said("Name as the store has it, to take the view away by.")


@page
@dataclass(frozen=True, slots=True)
class HomePage:
    """`/`: what this server holds."""

    template: ClassVar[str] = "home.html"
    frame: Frame = said("What surrounds the page.")
    n_runs: int = said("Runs on record.")
    n_rollouts: int = said("Rollouts on record, without deleted ones.")
    n_open: int = said("Of these, still open.")
    n_trainable: int = said("Of these, judged trainable.")
    n_calls: int = said("Calls that ended.")
    generated_tokens: int = said("Sampled tokens.")
    runs: tuple[RunRow, ...] = said("Newest runs.")
    more_runs: int = said("Runs not listed here.")
    newest: tuple[RolloutRow, ...] = said("Newest rollouts.")
    views: tuple[ViewLink, ...] = said("Saved views of the rollout list, by name.")
    engine: EngineCard = said("The engine in use.")
    store: StoreCard = said("The store.")
    commands: tuple[Command, ...] = said("How to make a rollout on this server.")
    started: str | None = said("When the server started, ISO 8601.")


@dataclass(frozen=True, slots=True)
class Choice:
    """One entry of a select."""

    value: str = said("Value in the address.")
    label: str = said("Text shown.")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number that the probe measured."""

    name: str = said("Name of the test.")
    value: str = said("What came out.")


@page
@dataclass(frozen=True, slots=True)
class EnginePage:
    """`/engine`: the certificate, its numbers and failures in words."""

    template: ClassVar[str] = "engine.html"
    frame: Frame = said("What surrounds the page.")
    engine: EngineCard = said("The engine in use.")
    fingerprint: str = said("Fingerprint of the engine's answers, or `unknown`.")
    weights: str = said("How the weight fence stands, in one line.")
    numbers: tuple[Measurement, ...] = said("Every measurement of the probe.")
    allow_uncertified: bool = said("Whether the operator lets uncertified engines count.")


@dataclass(frozen=True, slots=True)
class Key:
    """One keyboard shortcut."""

    keys: tuple[str, ...] = said("The key or keys.")
    does: str = said("What it does.")


@page
@dataclass(frozen=True, slots=True)
class KeysPage:
    """`/help/keys`: every keyboard shortcut, and how to read the token pane."""

    template: ClassVar[str] = "keys.html"
    frame: Frame = said("What surrounds the page.")
    shortcuts: tuple[Key, ...] = said("Shortcuts, in the order of use.")


@page
@dataclass(frozen=True, slots=True)
class ErrorPage:
    """Any error, without a stack trace."""

    template: ClassVar[str] = "error.html"
    frame: Frame = said("What surrounds the page.")
    status: int = said("HTTP status.")
    code: str = said("Stable code of the error.")
    message: str = said("What went wrong and what to do about it.")
    steps: tuple[Choice, ...] = said("What the reader can do next: address and text.")
