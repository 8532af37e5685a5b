"""Contexts of the pages about datasets: jobs, schedules, and the form that begins one.

Owns: these pages and their parts. No token is in any of them. Must not know: where the
values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Choice, Frame, page, said
from explorer.web.contexts_secrets import SecretItem


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """One job as a line of a list."""

    job_id: str = said("Id of the job.")
    href: str = said("Page of the job.")
    title: str = said("Title of the dataset.")
    target: str = said("Where it goes; empty for a dry run that names no place.")
    url: str = said("Where it can be found; empty where it is not published.")
    private: bool = said("Whether it is private there.")
    wants: str = said("files or publish.")
    state: str = said("queued, working, written, publishing, waiting, done, failed or stopped.")
    words: str = said("The state in words.")
    tone: str = said("How the state is coloured: good, warn, bad or nothing.")
    who: str = said("Who asked for it.")
    scheduled: bool = said("Whether a schedule made it.")
    when: str = said("When it was asked for, UTC.")
    asked: int = said("Rollouts that were asked for.")
    rollouts: int | None = said("Rollouts in it; null until it is written.")
    supervised_tokens: int | None = said("Tokens that train; null until it is written.")
    size: int | None = said("Bytes of its data files; null until it is written.")
    size_text: str = said("The same with a unit.")
    kept: int = said("Bytes of its files on this machine now.")
    kept_text: str = said("The same with a unit; empty where there are none.")


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One saved view that publishes itself."""

    schedule_id: str = said("Id of the schedule.")
    view: str = said("Name of the saved view.")
    view_href: str = said("The rollouts that it shows.")
    target: str = said("Where it is published.")
    private: bool = said("Whether it is private there.")
    title: str = said("Title of the dataset.")
    state: str = said("runs or paused.")
    tone: str = said("How the state is coloured: good, warn, bad or nothing.")
    paused: str = said("Why it publishes nothing now and what to do; empty while it may.")
    retry: str = said("Not before this time, UTC, after a failure; else empty.")
    who: str = said("Who made it or let it go on.")
    when: str = said("When it was made, UTC.")
    published: int = said("Rollouts that its dataset holds.")
    failures: int = said("Jobs that failed since one succeeded.")
    last_href: str | None = said("Its newest job, null before the first.")


@dataclass(frozen=True, slots=True)
class Leave:
    """Whether the reader may publish, and with what."""

    allowed: bool = said("Whether they may publish anything.")
    words: str = said("Why not, or with what: in words.")
    token: bool = said("Whether their session has a token of the Hub that lets them publish.")
    sign_in_href: str = said("Where leave to publish is asked for; empty where nowhere.")
    schedules: bool = said("Whether they may let views publish themselves.")
    targets: tuple[str, ...] = said("Datasets that their grants name; empty for a role.")
    ask_href: str = said("Where a grant to publish is asked for; empty for a role.")


@page
@dataclass(frozen=True, slots=True)
class DatasetsPage:
    """`/datasets`: what was written and published, and what publishes itself."""

    template: ClassVar[str] = "datasets.html"
    frame: Frame = said("What surrounds the page.")
    leave: Leave = said("Whether the reader may publish.")
    jobs: tuple[DatasetRow, ...] = said("Jobs that the reader may see, the newest first.")
    n_jobs: int = said("How many there are.")
    kept_text: str = said("Size of their files on this machine.")
    keep_days: float = said("Days after which the files of a job that ended are removed.")
    schedules: tuple[ScheduleRow, ...] = said("Views that publish themselves.")


@dataclass(frozen=True, slots=True)
class CountRow:
    """How many rollouts there are of one kind."""

    code: str = said("Name of the kind.")
    words: str = said("The same in words.")
    count: int = said("How many.")
    href: str | None = said("The list of them, null where there is none.")


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """A format beside Parquet."""

    name: str = said("Its name.")
    brief: str = said("What it is, and who reads it.")
    more: str = said("What is not in it, and more.")
    needs_bodies: bool = said("Whether requests and replies are in the dataset with it.")


@page
@dataclass(frozen=True, slots=True)
class NewDatasetPage:
    """`/datasets/publish`: what a dataset of a filter would hold, and the form for it."""

    template: ClassVar[str] = "dataset_new.html"
    frame: Frame = said("What surrounds the page.")
    leave: Leave = said("Whether the reader may publish.")
    view: str = said("Name of the saved view; empty where the filter is none.")
    query: str = said("The filter.")
    list_href: str = said("The list of what it shows.")
    title: str = said("Title that the form is filled with.")
    rollouts: int = said("Rollouts that match.")
    trainable: int = said("Closed ones that may train, and may leave.")
    supervised_tokens: int = said("Their tokens that train.")
    generated_tokens: int = said("Sampled tokens of all that match.")
    calls: int = said("Calls of all that match.")
    open: int = said("Still open: a dataset leaves them out.")
    undecided: int = said("Closed, with an undecided secret: left out whole.")
    undecided_rollouts: tuple[Choice, ...] = said("Those, with where one decides; not all.")
    untrained: tuple[CountRow, ...] = said("Closed ones without training rows, by reason.")
    licences: tuple[Choice, ...] = said("Licences to choose from.")
    name_rule: str = said("What the name of a dataset on the Hub may be.")
    formats: tuple[FormatChoice, ...] = said("Formats beside Parquet.")


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One part of a dataset: rows of one kind, or files of one format."""

    name: str = said("Name of the config or format.")
    native: bool = said("Whether it is part of the record; else another format of it.")
    about: str = said("What a row is.")
    rows: int = said("Rows, lines or files.")
    files: int = said("Files.")
    size: int = said("Bytes.")
    size_text: str = said("The same with a unit.")
    columns: tuple[Choice, ...] = said("Columns with their type and meaning; empty without.")


@dataclass(frozen=True, slots=True)
class FileRow:
    """One data file."""

    path: str = said("Path in the dataset.")
    size: int = said("Bytes.")
    size_text: str = said("The same with a unit.")
    sha256: str = said("SHA-256 of its bytes.")


@dataclass(frozen=True, slots=True)
class ExcludedRow:
    """A rollout that was asked for and is left out."""

    rollout_id: str = said("Id of the rollout.")
    href: str = said("Its page, where the reason can be looked into.")
    code: str = said("Why, as a code.")
    reason: str = said("Why, in words.")


@dataclass(frozen=True, slots=True)
class SecretHit:
    """One thing that looks like a secret, with what stands around it."""

    item: SecretItem = said("What was found, and where.")
    around: str = said("Text around it, with every secret covered; empty where there is none.")


@dataclass(frozen=True, slots=True)
class SecretsOf:
    """What looks like a secret in one rollout that is left out because of it."""

    rollout_id: str = said("Id of the rollout.")
    href: str = said("Where it is decided about.")
    hits: tuple[SecretHit, ...] = said("What was found, with its places.")


@dataclass(frozen=True, slots=True)
class Written:
    """What a job wrote."""

    rollouts: int = said("Rollouts in the dataset, with those that it held before.")
    trainable: int = said("Of these, with training rows.")
    supervised_tokens: int = said("Tokens that train, each once.")
    added: int = said("Rollouts that this job adds.")
    already: int = said("Rollouts that were asked for and were in it already.")
    kept_otherwise: int = said("Of these, would read otherwise now; they stay as published.")
    excluded: int = said("Rollouts that were asked for and left out.")
    left_out: tuple[CountRow, ...] = said("Those, by reason.")
    excluded_rows: tuple[ExcludedRow, ...] = said("The first of them.")
    untrained: tuple[CountRow, ...] = said("Rollouts without training rows, by reason.")
    secrets: tuple[SecretsOf, ...] = said("What looks like a secret in the first left out.")
    decoded: int = said("Rollouts whose written ids were decoded and read for secrets.")
    unknown_ids: int = said("Written ids that could not be decoded.")
    size: int = said("Bytes of all data files.")
    size_text: str = said("The same with a unit.")
    configs: tuple[ConfigRow, ...] = said("Its parts.")
    files: tuple[FileRow, ...] = said("The first data files.")
    n_files: int = said("Data files in all.")
    policies: tuple[str, ...] = said("Digests of the policies that it was judged by.")
    manifest_sha256: str = said("SHA-256 of the manifest.")


@page
@dataclass(frozen=True, slots=True)
class DatasetJobPage:
    """`/datasets/{job}`: how far a job is, what it wrote, its card, and what can be done."""

    template: ClassVar[str] = "dataset_job.html"
    frame: Frame = said("What surrounds the page.")
    leave: Leave = said("Whether the reader may publish.")
    job: DatasetRow = said("The job.")
    active: bool = said("Whether it is worked on, so that the page changes by itself.")
    part_href: str = said("Address of the part that changes.")
    phase: str = said("What is done now, in words.")
    done: int = said("How much of that is done.")
    total: int = said("How much there is to do.")
    progress: str = said("The same in words.")
    percent: int = said("The same in per cent.")
    code: str = said("Code of the error, empty without one.")
    message: str = said("The error in words, or why it waits; else empty.")
    view: str = said("Saved view that it was made of; empty where it was none.")
    query: str = said("Filter that it was made of.")
    list_href: str = said("The list of what that shows now.")
    licence: str = said("Licence of the dataset.")
    gated: str = said("no, auto or manual.")
    formats: tuple[str, ...] = said("Formats beside Parquet.")
    bodies: bool = said("Whether requests and replies are in it.")
    schedule_id: str = said("Schedule that made it, empty for a person.")
    written: Written | None = said("What it wrote; null before that.")
    card: str = said("The card, as text; empty where there is none on this machine.")
    name: str = said("Name that is typed again, for the public and to delete.")
    url: str = said("Where it was published, empty where it was not.")
    revision: str = said("Revision that was published, empty where there is none.")
    uploaded: int | None = said("Files that were uploaded, null before that.")
    skipped: int | None = said("Files that were there already, null before that.")
    nothing_new: bool = said("Whether there was nothing new to add.")
    removed: str = said("yanked or deleted, where what was published was taken back.")
    may_publish: bool = said("Whether the reader may publish it now.")
    may_go_on: bool = said("Whether it can go on.")
    may_stop: bool = said("Whether it can be stopped.")
    may_take_back: bool = said("Whether what it published can be taken back.")
    may_remove: bool = said("Whether its files can be removed from this machine.")
    may_forget: bool = said("Whether the job can be taken off the list.")
    zip_href: str = said("Download of all its files; empty where there is none.")
    verify: str = said("Command that checks the dataset alone.")
    folder: str = said("Where its files lie on the server, for the operator; else empty.")
