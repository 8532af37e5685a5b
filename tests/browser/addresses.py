"""Where every page template can be seen: the browser tests walk all of them.

An address may hold `{seed}`, the id of a rollout, `{call}`, one call of `{forked}`, and
`{waiting}` and `{standing}`, grants; `{dry_run}`, `{going}`, `{broken}` and `{public}`, jobs.
"""

from __future__ import annotations

# By the template that answers; a test checks that each page template is here and answers.
ADDRESSES: dict[str, tuple[str, ...]] = {
    "home.html": ("/",),
    "runs.html": ("/runs", "/runs?sort=-share"),
    "run.html": ("/runs/grpo-tiny%20%23412",),
    "rollouts.html": (
        "/rollouts",
        "/rollouts?q=nothing-like-this&state=asleep",
        "/rollouts?state=closed&sort=-share&cols=task,group,purpose,tokens,created",
    ),
    "engine.html": ("/engine",),
    "sql.html": ("/sql?sql=SELECT%20%27a%E2%80%AEb%27",),
    "keys.html": ("/help/keys",),
    "error.html": ("/nothing-here",),
    "search.html": (
        "/search",
        "/search?q=lock",
        "/search?q=lock&mode=contains&task=nothing,fix-lock&colour=red",
    ),
    "search_rollout.html": ("/rollouts/{forked}/search?q=lock",),
    "tokens.html": (
        "/rollouts/{forked}/tokens?t=140#t140",
        "/rollouts/{refused}/tokens?m=mask",
        "/rollouts/{ranked}/tokens?m=rank&ids=1&t=60",
        "/rollouts/{ranked}/tokens?m=version",
        "/rollouts/{ranked}/tokens?m=delta&t=70",
        "/rollouts/{hostile}/tokens",
        "/rollouts/{open}/tokens",
    ),
    "conversation.html": (
        "/rollouts/{forked}/conversation",
        "/rollouts/{hostile}/conversation",
    ),
    "timing.html": ("/rollouts/{forked}/timing",),
    "requests.html": ("/rollouts/{forked}/requests",),
    "request.html": ("/rollouts/{forked}/requests/{call}",),
    "group.html": ("/rollouts/{forked}/group",),
    "provenance.html": ("/rollouts/{forked}/provenance",),
    "drift_page.html": ("/rollouts/{forked}/drift",),
    "findings.html": ("/rollouts/{refused}/findings",),
    "delta.html": (
        "/rollouts/{ranked}/delta",
        "/rollouts/{forked}/delta?set=trainer.8.trl",
        "/rollouts/{small}/delta",
    ),
    "custody.html": ("/rollouts/{forked}/custody",),
    "notes.html": ("/rollouts/{forked}/notes",),
    "message.html": ("/rollouts/{forked}/message?call={call}&n=0",),
    "inspect_page.html": ("/rollouts/{small}/tokens/inspect?t=40",),
    "fork.html": ("/rollouts/{forked}/compare",),
    "sign_in.html": ("/sign-in?next=/runs",),
    "account.html": ("/account",),
    "grants.html": ("/grants",),
    "grant.html": ("/grants/{waiting}", "/grants/{standing}"),
    "grant_new.html": ("/grants/new?rollout={forked}&kind=raw",),
    "datasets.html": ("/datasets",),
    "dataset_new.html": (
        "/datasets/publish?run=grpo-tiny%20%23412",
        "/datasets/publish?run=nothing-like-this",
    ),
    "dataset_job.html": (
        "/datasets/{dry_run}",
        "/datasets/{going}",
        "/datasets/{broken}",
        "/datasets/{public}",
    ),
    "audit.html": ("/audit", "/audit?event=download&who=nobody"),
    "access.html": ("/access",),
    "rollout_access.html": (
        "/rollouts/{forked}/access",
        "/rollouts/{hostile}/access?subject=test:u-1",
    ),
    "compare.html": ("/compare?id={small}&id={forked}&id={refused}",),
}

EVERY = tuple(path for paths in ADDRESSES.values() for path in paths)
