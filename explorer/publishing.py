"""The commands `publish` and `withdraw`: a dataset to the Hub, a bucket or a folder, and away.
Wiring only.

Owns: where files are written on the way, whose token is used, what is printed.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
from huggingface_hub import get_token

from explorer.datasets import Wanted, on_source, tell
from explorer.errors import ConfigurationError, HubUnauthorised
from explorer.export.adapters.registry import adapters_of
from explorer.export.card.choice import CardChoice, checked_choice
from explorer.export.dataset.planning import Source
from explorer.export.hub.target import Target
from explorer.export.hub.targets import target_of
from explorer.export.publishing.procedure import (
    Order,
    Outcome,
    Prepared,
    Progress,
    prepare,
    publish,
)
from explorer.export.publishing.where import needs_token, repo_of
from explorer.progress import Phase
from explorer.records import RolloutId
from explorer.running import say
from explorer.settings import Settings


@dataclass(frozen=True, slots=True)
class Place:
    """Where it goes.

    Attributes:
        token: given by who runs the command; None: their own, of this machine's sign-in.
        endpoint: of the Hub.
    """

    where: str
    token: str | None = None
    public: bool = False
    gated: Literal["", "auto", "manual"] = ""
    endpoint: str | None = None

    def target(self) -> Target:
        """The place, checked as far as its name goes.

        Raises:
            HubUnauthorised: it needs a token, and there is none.
        """
        token = self.token or (get_token() if needs_token(self.where) else None)
        target = target_of(
            self.where,
            token=token,
            private=not self.public,
            gated=self.gated,
            endpoint=self.endpoint,
        )
        if token is None and needs_token(self.where):
            raise HubUnauthorised(
                f"{target.title} needs a token of yours with the scope `contribute-repos` or "
                "`write`: give --token-file FILE, set HF_TOKEN, or run `hf auth login`"
            )
        return target


@dataclass(frozen=True, slots=True)
class Wish:
    """What to publish: a dry run where there is no place."""

    wanted: Wanted
    choice: CardChoice
    formats: tuple[str, ...] | None = None
    bodies: bool = False
    place: Place | None = None
    out: Path | None = None
    anew: bool = False


def run_publish(settings: Settings, wish: Wish) -> int:
    """Writes the files and the card, and uploads them where there is a place.

    Returns:
        The exit status: 0 when every rollout that was asked for is in it.
    """
    choice = checked_choice(wish.choice)
    adapters_of(wish.formats or ())
    if wish.place is None:
        assert wish.out is not None  # the command asks for one
        return _dry_run(settings, wish, choice, wish.out)
    target = wish.place.target()
    folder = wish.out or _folder(settings, wish.place.where)

    async def work(source: Source, rollout_ids: list[RolloutId]) -> Outcome:
        with _stopping() as stop:
            order = _order(wish, choice, rollout_ids)
            return await publish(source, order, folder, target, _told(), stop, approve)

    def approve(prepared: Prepared) -> None:
        _tell_plan(prepared, folder)
        say(f"to       {target.title}, {_seen_by(wish.place)}")

    _sweep(folder)
    outcome = on_source(settings, wish.wanted, work)
    if outcome.published is None:
        say(f"there    {target.title} has all {outcome.prepared.already} of them already")
        _tell_kept(outcome.prepared)
    else:
        done = outcome.published
        say(f"uploaded {done.uploaded} files, {done.bytes} bytes; {done.skipped} were there")
        say(f"is at    {done.url}" + (f" (revision {done.revision})" if done.revision else ""))
    if wish.out is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if outcome.prepared.manifest.excluded else 0


def _dry_run(settings: Settings, wish: Wish, choice: CardChoice, folder: Path) -> int:
    async def work(source: Source, rollout_ids: list[RolloutId]) -> Prepared:
        with _stopping() as stop:
            order = _order(wish, choice, rollout_ids)
            return await prepare(source, order, folder, told=_told(), stop=stop)

    _sweep(folder)
    prepared = on_source(settings, wish.wanted, work)
    _tell_plan(prepared, folder)
    say(f"card     {folder / 'README.md'}; nothing was uploaded")
    return 1 if prepared.manifest.excluded else 0


def _order(wish: Wish, choice: CardChoice, rollout_ids: list[RolloutId]) -> Order:
    return Order(tuple(rollout_ids), choice, wish.formats, wish.bodies, anew=wish.anew)


def _folder(settings: Settings, where: str) -> Path:
    """Where files lie on the way; the same for the same place, so that what was cut short
    is found again."""
    name = (repo_of(where) or where).replace("/", "--")
    kept = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in name)
    return settings.store.with_name(settings.store.name + ".publish") / kept.lstrip(".")[:120]


def _sweep(folder: Path) -> None:
    """Removes what a writing that was killed left beside its place."""
    for left in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Set by the first interrupt; the second one ends the program as ever."""
    stop = threading.Event()

    def note(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _told() -> Callable[[Progress], None]:
    phases: dict[str, Phase] = {}

    def told(now: Progress) -> None:
        phase = phases.setdefault(now.phase, Phase(now.phase, now.unit))
        phase.told(now.done, now.of)

    return told


def _tell_plan(prepared: Prepared, folder: Path) -> None:
    tell(prepared.manifest, folder)
    if prepared.already:
        say(f"         {prepared.already} are there already, {prepared.added} are new")
    if prepared.manifest.bodies:
        say("         with requests and replies as text")
    say(f"         {len(prepared.new_files)} new files, {prepared.size} bytes to upload")
    _tell_kept(prepared)


def _tell_kept(prepared: Prepared) -> None:
    if prepared.kept_otherwise:
        many = len(prepared.kept_otherwise)
        say(
            f"         {many} that are there would be judged from other inputs now; what is "
            "published stays as it is"
        )


def _seen_by(place: Place | None) -> str:
    if place is None or not needs_token(place.where):
        return "readable by whoever reads the folder"
    if not place.public:
        return "private"
    return "public" + (f", behind a gate ({place.gated})" if place.gated else "")


def withdraw(place: Place, reason: str, *, whole: bool) -> int:
    """Takes a dataset away from where it was published."""
    target = place.target()
    target.remove(reason, whole)
    say(f"removed  {target.title}" if whole else f"withdrawn {target.title}: {reason}")
    if not whole and repo_of(place.where):
        say("         earlier revisions still hold the data; --whole deletes those, too")
    return 0


def read_token(file: Path | None) -> str | None:
    """The token in a file; `-` is standard input.

    Raises:
        ConfigurationError: there is none in it.
    """
    if file is None:
        return None
    try:
        text = click.open_file(str(file)).read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    if not text or any(letter.isspace() for letter in text):
        raise ConfigurationError(f"{file} holds no token: one word is wanted")
    return str(text)
