"""Grants and levels for the pages that show them, with hostile names."""

from __future__ import annotations

from explorer.access.grants import ObjectKind, State, SubjectKind, Wanted
from explorer.access.people import Caller, How, Person, Role
from explorer.access.policy import Kind, Level
from explorer.access.visibility import Target
from tests.web.dataset_seeds import JOBS, dataset_jobs
from tests.web.seeds import HOSTILE, Maker
from tests.web.serving import Served

GRANTED = ("waiting", "standing", *JOBS)
OPERATOR = Caller(Role.OPERATOR, How.OPERATOR_TOKEN)


def granted(running: Served, made: dict[str, Maker]) -> dict[str, str]:
    """Ids of a grant that waits, of one that stands, and of dataset jobs, made where there
    is none."""
    access = running.app.state.access
    if not access.grants.all:
        rollouts = tuple(str(made[name].rollout.rollout_id) for name in ("forked", "hostile"))
        for kind, name in ((Kind.RAW, HOSTILE), (Kind.TRAINING_TRACE, "ana")):
            person = Person("test:u-1", name)
            wanted = Wanted(
                SubjectKind.PERSON,
                person.subject,
                name,
                ObjectKind.ROLLOUTS,
                rollouts,
                (kind,),
                HOSTILE + "W" * 300,
            )
            asked = access.grants.ask(Caller(Role.VIEWER, How.SESSION, person=person), wanted)
        access.grants.decide(OPERATOR, asked.grant_id, State.APPROVED, HOSTILE)
        access.visibility.set(OPERATOR, Target.RUN, made["forked"].rollout.run, None, HOSTILE)
        access.visibility.set(OPERATOR, Target.RUN, HOSTILE, Level.PUBLIC, HOSTILE)
    states = {State.PENDING: "waiting", State.APPROVED: "standing"}
    found = {states[grant.steps[-1].state]: grant.grant_id for grant in access.grants.all}
    return found | dataset_jobs(running)
