"""What each route needs: one table, and a route that is not in it serves nobody.

Owns: the rule of every page, twin and API route. Must not know: how a rule is decided.

Names are method and path as the routes declare them. A test walks the routes of the
application and fails when one has no rule, or a rule has no route; another asks every route
as everybody and compares with what the policy says.
"""

from __future__ import annotations

from explorer.access.policy import Action, Kind, Rule

OPEN = Rule(Action.OPEN)
OPEN_FORM = Rule(Action.OPEN, changes=True)
LIST = Rule(Action.LIST)
SEE = Rule(Action.SEE)
OWN = Rule(Action.OWN)
OWN_CHANGE = Rule(Action.OWN, changes=True)
ASK = Rule(Action.ASK)
ASK_CHANGE = Rule(Action.ASK, changes=True)
PUBLISH = Rule(Action.PUBLISH)
PUBLISH_CHANGE = Rule(Action.PUBLISH, changes=True)
CURATE = Rule(Action.CURATE)
CURATE_CHANGE = Rule(Action.CURATE, changes=True)
DECIDE = Rule(Action.DECIDE)
DECIDE_CHANGE = Rule(Action.DECIDE, changes=True)
OPERATE = Rule(Action.OPERATE)
OPERATE_CHANGE = Rule(Action.OPERATE, changes=True)
TRACE = Rule(Action.TAKE, kind=Kind.TRAINING_TRACE)
AUDIT = Rule(Action.TAKE, kind=Kind.CAPTURE_AUDIT)
RAW = Rule(Action.TAKE, kind=Kind.RAW)

_ROLLOUT = "/rollouts/{rollout_id}"
_API = "/api/v1/rollouts/{rollout_id}"


def _pages(rule: Rule, *paths: str) -> dict[tuple[str, str], Rule]:
    """Pages with their twins."""
    named = [path for each in paths for path in (each, f"{each}.json")]
    return {("GET", path): rule for path in named}


def _get(rule: Rule, *paths: str) -> dict[tuple[str, str], Rule]:
    return {("GET", path): rule for path in paths}


def _post(rule: Rule, *paths: str) -> dict[tuple[str, str], Rule]:
    return {("POST", path): rule for path in paths}


ROUTE_RULES: dict[tuple[str, str], Rule] = {
    # Asks for nothing
    **_get(OPEN, "/healthz", "/readyz", "/openapi.json", "/help/keys", "/help/keys.json"),
    # Many rollouts
    **_get(LIST, "/", "/index.json", "/rollouts.csv", "/rollouts.parquet"),
    **_pages(LIST, "/runs", "/runs/{run:path}", "/rollouts", "/search", "/compare"),
    **_pages(LIST, "/runs/{run:path}/groups/{group:path}"),
    **_pages(LIST, "/engine"),
    **_get(
        LIST,
        "/api/v1/rollouts",
        "/api/v1/runs",
        "/api/v1/runs/{run:path}/delta",
        "/api/v1/search",
        "/api/v1/labels",
        "/api/v1/views",
        "/api/v1/engine",
    ),
    # One rollout
    **_get(SEE, _ROLLOUT, f"{_ROLLOUT}/live", f"{_ROLLOUT}/picture"),
    **_get(SEE, f"{_ROLLOUT}/columns/{{metric}}"),
    **_pages(
        SEE,
        f"{_ROLLOUT}/conversation",
        f"{_ROLLOUT}/tokens",
        f"{_ROLLOUT}/tokens/inspect",
        f"{_ROLLOUT}/tokens/section",
        f"{_ROLLOUT}/timing",
        f"{_ROLLOUT}/requests",
        f"{_ROLLOUT}/requests/{{call_id}}",
        f"{_ROLLOUT}/group",
        f"{_ROLLOUT}/provenance",
        f"{_ROLLOUT}/findings",
        f"{_ROLLOUT}/custody",
        f"{_ROLLOUT}/delta",
        f"{_ROLLOUT}/compare",
        f"{_ROLLOUT}/message",
        f"{_ROLLOUT}/notes",
        f"{_ROLLOUT}/search",
        f"{_ROLLOUT}/access",
    ),
    **_get(
        SEE,
        _API,
        f"{_API}/tree",
        f"{_API}/calls",
        f"{_API}/findings",
        f"{_API}/annotations",
        f"{_API}/events",
        f"{_API}/receipts",
        f"{_API}/delta",
        f"{_API}/search",
        f"{_API}/access",
    ),
    # Renders templates of the tokenizer: seconds of work, and the whole text.
    **_pages(CURATE, f"{_ROLLOUT}/drift"),
    **_get(CURATE, f"{_API}/drift", f"{_API}/secrets"),
    # Whole documents
    **_get(TRACE, f"{_API}/training-trace"),
    **_get(AUDIT, f"{_API}/capture-audit", f"{_API}/calls/{{call_id}}"),
    **_get(RAW, f"{_API}/raw/{{call_id}}"),
    # What people decide and note
    **_post(
        CURATE_CHANGE,
        f"{_API}/overrides",
        f"{_API}/annotations",
        f"{_API}/secrets/{{finding_id}}",
        f"{_ROLLOUT}/secrets",
        f"{_ROLLOUT}/overrides",
        f"{_ROLLOUT}/notes",
        f"{_ROLLOUT}/notes/{{annotation_id}}",
        "/rollouts/labels",
        "/api/v1/labels",
        "/api/v1/views",
        "/views",
        "/views/drop",
    ),
    ("DELETE", f"{_API}/annotations/{{annotation_id}}"): CURATE_CHANGE,
    ("DELETE", "/api/v1/views/{name:path}"): CURATE_CHANGE,
    # Datasets: which rollouts, and to where, is asked again with the dataset's name
    **_pages(ASK, "/datasets", "/datasets/publish", "/datasets/{job_id}"),
    **_get(ASK, "/datasets/{job_id}/progress"),
    **_get(ASK, "/api/v1/datasets", "/api/v1/datasets/{job_id}"),
    **_get(CURATE, "/api/v1/dataset-schedules"),
    **_get(PUBLISH, "/datasets/{job_id}/files.zip"),
    **_post(
        PUBLISH_CHANGE,
        "/datasets",
        "/datasets/{job_id}/publish",
        "/datasets/{job_id}/go-on",
        "/datasets/{job_id}/stop",
        "/datasets/{job_id}/remove",
        "/datasets/{job_id}/forget",
        "/datasets/{job_id}/yank",
        "/datasets/{job_id}/delete",
        "/api/v1/datasets",
        "/api/v1/datasets/{job_id}/publish",
        "/api/v1/datasets/{job_id}/stop",
        "/api/v1/datasets/{job_id}/go-on",
        "/api/v1/datasets/{job_id}/take-back",
    ),
    ("DELETE", "/api/v1/datasets/{job_id}"): PUBLISH_CHANGE,
    **_post(
        CURATE_CHANGE,
        "/datasets/schedules",
        "/datasets/schedules/{schedule_id}/{change}",
        "/api/v1/dataset-schedules",
        "/api/v1/dataset-schedules/{schedule_id}/go-on",
        "/api/v1/dataset-schedules/{schedule_id}/pause",
    ),
    ("DELETE", "/api/v1/dataset-schedules/{schedule_id}"): CURATE_CHANGE,
    # Grants, levels, roles and the log
    **_pages(ASK, "/grants", "/grants/new", "/grants/{grant_id}"),
    **_get(ASK, "/api/v1/grants", "/api/v1/grants/{grant_id}"),
    **_post(ASK_CHANGE, "/grants", "/api/v1/grants"),
    **_post(
        DECIDE_CHANGE,
        "/grants/{grant_id}/approve",
        "/grants/{grant_id}/reject",
        "/grants/{grant_id}/revoke",
        "/api/v1/grants/{grant_id}/approve",
        "/api/v1/grants/{grant_id}/reject",
        f"{_ROLLOUT}/access",
        "/access/levels",
        "/access/roles",
        "/api/v1/visibility",
        "/api/v1/roles",
    ),
    ("DELETE", "/api/v1/grants/{grant_id}"): DECIDE_CHANGE,
    **_pages(DECIDE, "/audit", "/access"),
    **_get(
        DECIDE,
        "/audit.csv",
        "/audit.jsonl",
        "/api/v1/audit",
        "/api/v1/visibility",
        "/api/v1/roles",
    ),
    # The server
    **_get(OPERATE, "/metrics", "/api/v1/weights"),
    **_pages(OPERATE, "/sql"),
    **_post(OPERATE_CHANGE, "/sql", "/sql.json", "/sql.csv", "/sql.parquet"),
    **_post(
        OPERATE_CHANGE,
        "/api/v1/rollouts",
        "/api/v1/imports",
        "/api/v1/backup",
        "/api/v1/weights",
        f"{_API}/reward",
        f"{_API}/trainer-logprobs",
        "/api/v1/runs/{run:path}/trainer-logprobs",
        f"{_API}/rescore",
        f"{_API}/close",
    ),
    ("DELETE", _API): OPERATE_CHANGE,
    # Signing in and one's own account
    **_pages(OPEN, "/sign-in"),
    **_get(OPEN, "/sign-in/{provider}", "/sign-in/{provider}/callback", "/api/v1/whoami"),
    **_post(OPEN_FORM, "/sign-in/operator", "/sign-out"),
    **_pages(OWN, "/account"),
    **_get(OWN, "/api/v1/tokens"),
    **_post(
        OWN_CHANGE,
        "/account/tokens",
        "/account/tokens/{token_id}/revoke",
        "/account/sessions/{session_id}/end",
        "/api/v1/tokens",
    ),
    ("DELETE", "/api/v1/tokens/{token_id}"): OWN_CHANGE,
}


def rule_of(method: str, path: str) -> Rule | None:
    """The rule of a route; None where it has none."""
    return ROUTE_RULES.get(("GET" if method == "HEAD" else method, path))
