"""What a caller reaches: the rollouts that may be seen, and what grants say of one.

Owns: joining levels, views, runs and grants into answers about one rollout or all of them.
Must not know: HTTP, rules of routes, how the answers are enforced.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import replace
from urllib.parse import parse_qsl

from explorer.access.grant_book import GrantBook
from explorer.access.grants import Grant, ObjectKind, Place, State, facts
from explorer.access.people import Caller, Scope
from explorer.access.policy import (
    NO_GRANT,
    Action,
    GrantFacts,
    Kind,
    Level,
    Rule,
    decide,
    sees_all,
)
from explorer.access.visibility import Holds, Target, Visibility
from explorer.records import RolloutId
from explorer.store.interface import Store
from explorer.store.listing import MAX_PAGE
from explorer.store.queries import Field, RolloutQuery, Term
from explorer.web.list_query import read_address

_KEPT = 64
SEE = Rule(Action.SEE)
Ids = frozenset[RolloutId]


class Reach:
    """Answers from the store, the levels and the grants as they are now.

    Args:
        store: whole, not narrowed.
        clock: microseconds since the epoch.
    """

    def __init__(
        self, store: Store, visibility: Visibility, grants: GrantBook, clock: Callable[[], int]
    ) -> None:
        self.visibility = visibility
        self.grants = grants
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._members: dict[str, Ids] = {}
        self._levels: dict[RolloutId, Level] = {}
        self._stamp: object = None
        self._seen: OrderedDict[object, Ids] = OrderedDict()

    def there(self, rollout_id: RolloutId) -> bool:
        """Whether there is such a rollout, and nobody deleted it."""
        return self._store.rollout(rollout_id) is not None

    def place(self, rollout_id: RolloutId) -> Place | None:
        """The rollout as grants and levels see it; None when there is none (or it was
        deleted)."""
        rollout = self._store.rollout(rollout_id)
        if rollout is None:
            return None
        names = [name for name in self._wanted_views() if self._matches(name, rollout_id)]
        return Place(rollout_id, rollout.run, frozenset(names))

    def holds(self, place: Place) -> Holds:
        """Which level holds for a rollout, and why."""
        return self.visibility.holds(place.rollout_id, place.run, place.views)

    def facts(
        self, caller: Caller, place: Place, kind: Kind | None, gates: Collection[str] = ()
    ) -> GrantFacts:
        """What grants say about a caller and a rollout."""
        if caller.person is None:
            return NO_GRANT
        return facts(self.grants.all, caller, place, kind, self._clock(), gates)

    def gates(self, place: Place) -> tuple[str, ...]:
        """Hub datasets whose gate would open a rollout, if the caller passes it."""
        now = self._clock()
        return tuple(
            grant.wanted.subject
            for grant in self.grants.all
            if grant.wanted.subject_kind.value == "hub_gate"
            and grant.state(now) is State.APPROVED
            and grant.covers(place.rollout_id, place.run, place.views)
        )

    def visible(self, caller: Caller) -> Ids | None:
        """Every rollout whose pages the caller may see; None: all there are."""
        if sees_all(caller):
            return None
        if caller.scopes is not None and Scope.READ not in caller.scopes:
            return frozenset()
        with self._lock:
            self._refresh()
            mine = self._mine(caller)
            key = (caller.signed_in, frozenset(grant.grant_id for grant in mine))
            found = self._seen.get(key)
            if found is None:
                found = self._visible(caller, mine)
                self._seen[key] = found
                while len(self._seen) > _KEPT:
                    self._seen.popitem(last=False)
            return found

    def opens(self, view: str) -> bool:
        """Whether a saved view says who may see or take what: some level or grant names it."""
        return view in self._wanted_views()

    def askable_run(self, run: str) -> bool:
        """Whether some rollout of a run is not private."""
        with self._lock:
            self._refresh()
            runs = self._store.rollout_runs()
            return any(
                level is not Level.PRIVATE and runs.get(rollout_id) == run
                for rollout_id, level in self._levels.items()
            )

    def askable_view(self, name: str) -> bool:
        """Whether a view exists and was opened to others than curators."""
        level = self.visibility.own(Target.VIEW, name)
        return level not in (None, Level.PRIVATE) and self._query(name) is not None

    def covered(self, grant: Grant) -> tuple[Ids, int]:
        """The rollouts that a grant reaches now, and how many more it names that are
        private, which it does not reach."""
        with self._lock:
            self._refresh()
            names = set(grant.wanted.objects)
            members = dict(self._members)
            if grant.wanted.object_kind is ObjectKind.VIEW:
                members |= {name: self._all(name) for name in names if name not in members}
            runs = self._store.rollout_runs()
            reached, private = set[RolloutId](), 0
            for rollout_id, level in self._levels.items():
                views = [name for name in names if rollout_id in members.get(name, ())]
                if grant.covers(rollout_id, runs.get(rollout_id, ""), views):
                    if level is Level.PRIVATE:
                        private += 1
                    else:
                        reached.add(rollout_id)
            return frozenset(reached), private

    def _mine(self, caller: Caller) -> list[Grant]:
        """Grants that let the caller see; a Hub gate is asked only for one rollout at once."""
        now = self._clock()
        stands = (State.APPROVED, State.SPENT)
        return [g for g in self.grants.all if g.names(caller) and g.state(now) in stands]

    def _visible(self, caller: Caller, mine: list[Grant]) -> Ids:
        by_level = {
            level: decide(caller, SEE, level).allowed
            for level in (Level.PUBLIC, Level.SIGNED_IN, Level.GRANTED, Level.PRIVATE)
        }
        runs = self._store.rollout_runs() if mine else {}
        found = {rollout_id for rollout_id, level in self._levels.items() if by_level[level]}
        for rollout_id, level in self._levels.items():
            if level is Level.PRIVATE or rollout_id in found or not mine:
                continue
            views = [name for name, ids in self._members.items() if rollout_id in ids]
            run = runs.get(rollout_id, "")
            if any(grant.covers(rollout_id, run, views) for grant in mine):
                found.add(rollout_id)
        return frozenset(found)

    def _wanted_views(self) -> tuple[str, ...]:
        """Views that some level or grant names."""
        names = set(self.visibility.views)
        for grant in self.grants.all:
            if grant.wanted.object_kind is ObjectKind.VIEW:
                names.update(grant.wanted.objects)
        return tuple(sorted(names))

    def _refresh(self) -> None:
        """Reads levels again when anything was written or a view may match otherwise."""
        wanted = self._wanted_views()
        # A filter of the list may be relative to now, so members are no older than this.
        minute = self._clock() // 60_000_000 if wanted else 0
        stamp = (self._store.health().commits, self.visibility.version, wanted, minute)
        if stamp == self._stamp:
            return
        self._members = {name: self._all(name) for name in wanted}
        self._levels = {
            RolloutId(rollout_id): level
            for rollout_id, level in self.visibility.levels(
                {str(name): run for name, run in self._store.rollout_runs().items()},
                {name: frozenset(map(str, ids)) for name, ids in self._members.items()},
            ).items()
        }
        self._seen.clear()
        self._stamp = stamp

    def _query(self, name: str) -> RolloutQuery | None:
        view = next((each for each in self._store.views() if each.name == name), None)
        if view is None:
            return None
        address = read_address(parse_qsl(view.query), self._clock())
        # A view that cannot be read whole matches nothing: less is safer than more.
        return None if address.problems else address.query(MAX_PAGE)

    def _all(self, name: str) -> Ids:
        query = self._query(name)
        found: set[RolloutId] = set()
        cursor = None
        while query is not None:
            page = self._store.list_rollouts(replace(query, cursor=cursor, limit=MAX_PAGE))
            found.update(row.rollout_id for row in page.rows)
            cursor = page.next_cursor
            if cursor is None:
                break
        return frozenset(found)

    def _matches(self, name: str, rollout_id: RolloutId) -> bool:
        query = self._query(name)
        if query is None:
            return False
        term = Term(Field.ID, (rollout_id,))
        one = replace(query, terms=(*query.terms, term), cursor=None, limit=1)
        return self._store.list_rollouts(one).total > 0
