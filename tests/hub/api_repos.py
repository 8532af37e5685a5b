"""The local Hub's answers about repositories: who one is, create, look at, settings, delete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.hub import people
from tests.hub.repos import Commit, File, Repo
from tests.hub.wire import Answer, Refusal, Request, Route, route, told

if TYPE_CHECKING:
    from tests.hub.server import LocalHub

NAME = re.compile(
    r"(?!.*(?:--|\.\.))(?!.*\.git$)[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?", re.A
)
# One a line; what the Hub documents under "Licenses".
LICENCES = Path(__file__).with_name("licences.txt").read_text().split()


def whoami(hub: LocalHub, request: Request) -> Answer:
    return told(people.whoami(hub.people.who(request.token)))


def create(hub: LocalHub, request: Request) -> Answer:
    asked = request.json()
    kind, name = asked.get("type") or "model", str(asked["name"])
    token = hub.people.who(request.token)
    namespace = asked.get("organization") or (token.person.name if token else "")
    token = people.may_create(token, kind, namespace)
    if not NAME.fullmatch(name):
        raise Refusal(400, f"Invalid repo name: {name}")
    repo_id = f"{namespace}/{name}"
    url = f"{request.base}/{hub.prefix(kind)}{repo_id}"
    if (kind, repo_id) in hub.shelf.repos:
        raise Refusal(409, f"You already created this {kind} repo", url=url)
    private = asked.get("visibility", "public") == "private"
    hub.shelf.create(kind, repo_id, private, token.person.name)
    token.created.add((kind, repo_id))
    return told({"url": url, "name": repo_id, "id": f"r-{repo_id}"})


def delete(hub: LocalHub, request: Request) -> Answer:
    asked = request.json()
    kind = asked.get("type") or "model"
    token = hub.people.who(request.token)
    namespace = asked.get("organization") or (token.person.name if token else "")
    repo_id = f"{namespace}/{asked['name']}"
    people.write(token, hub.shelf.repos.get((kind, repo_id)), deletes=True)
    del hub.shelf.repos[kind, repo_id]
    return Answer()


def seen(hub: LocalHub, request: Request, kind: str, ns: str, name: str) -> Repo:
    """The repository, for those who may know of it."""
    token = hub.people.who(request.token)
    repo = hub.shelf.repos.get((kind.removesuffix("s"), f"{ns}/{name}"))
    people.see(token, repo)
    assert repo is not None
    return repo


def commit_of(repo: Repo, revision: str) -> Commit:
    """Raises:
    Refusal: there is no such revision.
    """
    commit = repo.at(revision)
    if commit is None:
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    return commit


def lfs_of(file: File, name: str) -> dict[str, Any]:
    """What is said of a large file; the key of its hash differs from place to place."""
    if file.sha256 is None:
        return {}
    return {"lfs": {name: file.sha256, "size": file.size, "pointerSize": 134}}


def info(
    hub: LocalHub, request: Request, kind: str, ns: str, name: str, rev: str = "main"
) -> Answer:
    repo = seen(hub, request, kind, ns, name)
    commit = commit_of(repo, rev)
    if rev == "main" and hub.lag:
        # What the Hub tells of a repository can be behind what was done to it.
        told_of = repo.told(hub.lag)
        if told_of is None:
            raise Refusal(404, "Repository not found", "RepoNotFound")
        commit = told_of
    card: Any = None
    if "README.md" in commit.files:
        card = front_matter(hub.shelf.content(commit.files["README.md"]).decode()) or None
    siblings = [
        {"rfilename": path, "size": file.size, "blobId": file.oid} | lfs_of(file, "sha256")
        for path, file in sorted(commit.files.items())
    ]
    return told(
        {
            "_id": f"r-{repo.id}",
            "id": repo.id,
            "author": ns,
            "sha": commit.oid,
            "lastModified": commit.date,
            "createdAt": repo.history[0].date,
            "private": repo.private,
            "gated": repo.gated,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "cardData": card,
            "siblings": siblings,
        }
    )


def settings(hub: LocalHub, request: Request, kind: str, ns: str, name: str) -> Answer:
    repo = seen(hub, request, kind, ns, name)
    people.write(hub.people.who(request.token), repo)
    asked = request.json()
    if "visibility" in asked:
        repo.private = asked["visibility"] == "private"
    if "gated" in asked:
        if asked["gated"] not in ("auto", "manual", False):
            raise Refusal(400, '"gated" must be one of [auto, manual, false]')
        repo.gated = asked["gated"]
    return told({"private": repo.private, "gated": repo.gated})


def auth_check(hub: LocalHub, request: Request, kind: str, ns: str, name: str) -> Answer:
    repo = hub.shelf.repos.get((kind.removesuffix("s"), f"{ns}/{name}"))
    people.read(hub.people.who(request.token), repo)
    return told({})


def auth_check_write(hub: LocalHub, request: Request, kind: str, ns: str, name: str) -> Answer:
    repo = hub.shelf.repos.get((kind.removesuffix("s"), f"{ns}/{name}"))
    people.write(hub.people.who(request.token), repo)
    return told({})


def refs(hub: LocalHub, request: Request, kind: str, ns: str, name: str) -> Answer:
    repo = seen(hub, request, kind, ns, name)
    branches = [
        {"name": branch, "ref": f"refs/heads/{branch}", "targetCommit": oid}
        for branch, oid in repo.branches.items()
    ]
    return told({"branches": branches, "converts": [], "tags": [], "pullRequests": []})


def commits(hub: LocalHub, request: Request, kind: str, ns: str, name: str, rev: str) -> Answer:
    repo = seen(hub, request, kind, ns, name)
    commit_of(repo, rev)
    return told(
        [
            {
                "id": commit.oid,
                "title": commit.title,
                "message": commit.message,
                "date": commit.date,
                "authors": [{"user": commit.author}],
            }
            for commit in reversed(repo.history)
        ]
    )


def front_matter(text: str) -> Any:
    """What stands between the first two lines of dashes; None where nothing does.

    Raises:
        yaml.YAMLError: it is no YAML.
    """
    found = re.match(r"\s*---[ \t]*\n(.*?)\n---[ \t]*(?:\n|$)", text, re.S)
    return yaml.safe_load(found[1]) if found else None


def card_errors(text: str) -> list[str]:
    """What the Hub refuses in a card's front matter: a part of its rules."""
    try:
        meta = front_matter(text)
    except yaml.YAMLError as error:
        return [f"Invalid YAML: {error}"]
    if meta is None:
        return []
    if not isinstance(meta, dict):
        return ["YAML metadata must be an object"]
    errors = []
    licences = meta.get("license", [])
    for licence in licences if isinstance(licences, list) else [licences]:
        if licence not in LICENCES:
            errors.append(f'"license" must be one of [{", ".join(LICENCES)}]')
    configs = meta.get("configs", [])
    if not isinstance(configs, list) or not all(
        isinstance(config, dict) and isinstance(config.get("config_name"), str)
        for config in configs
    ):
        errors.append('"configs" must be an array of objects with "config_name"')
    return errors


def validate_yaml(hub: LocalHub, request: Request) -> Answer:
    text = str(request.json()["content"])
    errors = [{"message": message} for message in card_errors(text)]
    empty = not errors and front_matter(text) is None
    warning = {"message": "empty or missing yaml metadata in repo card"}
    body = {"errors": errors, "warnings": [warning] if empty else []}
    return told(body, 400 if errors else 200)


ROUTES: list[Route] = [
    route("GET", "/api/whoami-v2", whoami),
    route("POST", "/api/repos/create", create),
    route("DELETE", "/api/repos/delete", delete),
    route("POST", "/api/validate-yaml", validate_yaml),
    route("GET", "/api/<kind>/<ns>/<name>/auth-check", auth_check),
    route("GET", "/api/<kind>/<ns>/<name>/auth-check/write", auth_check_write),
    route("GET", "/api/<kind>/<ns>/<name>/refs", refs),
    route("GET", "/api/<kind>/<ns>/<name>/commits/<rev>", commits),
    route("GET", "/api/<kind>/<ns>/<name>/revision/<rev>", info),
    route("PUT", "/api/<kind>/<ns>/<name>/settings", settings),
    route("GET", "/api/<kind>/<ns>/<name>", info),
]
