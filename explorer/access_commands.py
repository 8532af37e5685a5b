"""The commands `grants …`, `visibility …`, `roles …` and `audit …`. Wiring only."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from explorer import options
from explorer.access.audit_file import check_file
from explorer.commands import on_server, print_json
from explorer.settings import load

KINDS = ("training_trace", "capture_audit", "raw", "publish")
LEVELS = ("public", "signed-in", "granted", "private", "unset")


def _ask(flags: dict[str, Any], method: str, path: str, body: Any = None) -> Any:
    return on_server(load(**flags), lambda client: client.request(method, path, body))


@click.group()
def grants() -> None:
    """List, give, approve, reject and revoke grants."""


@grants.command("list")
@options.store
@click.option("--state", help="pending, approved, rejected, revoked, expired or spent.")
@click.option("--json", "as_json", is_flag=True)
def list_grants(state: str | None, as_json: bool, **flags: Any) -> None:
    """Grants and requests, the newest first."""
    query = "?" + urlencode({"state": state}) if state else ""
    found = _ask(flags, "GET", f"/api/v1/grants{query}")["grants"]
    if as_json:
        print_json(found)
        return
    for row in found:
        uses = "" if row["max_uses"] is None else f" of {row['max_uses']}"
        line = (
            f"{row['grant_id']}  {row['state']:<9} {row['subject']:<30} "
            f"{row['object_kind']} {', '.join(row['objects'])[:60]}  "
            f"{'+'.join(row['kinds'])}  used {row['uses']}{uses}  {row['purpose'][:60]}"
        )
        # A name may hold what a terminal would obey.
        click.echo("".join(letter if letter.isprintable() else "?" for letter in line))
    click.echo(f"{len(found)} grant{'' if len(found) == 1 else 's'}")


@grants.command("give")
@click.argument("subject")
@options.store
@click.option("--rollout", "rollouts", multiple=True, help="Id; may be repeated.")
@click.option("--run", help="A whole run, as it is at each use.")
@click.option("--view", help="A saved view, as it is at each use.")
@click.option("--dataset", help="namespace/name on the Hub, with --kind publish.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), required=True)
@click.option("--purpose", required=True, help="What it is for.")
@click.option("--days", type=float, default=7.0, show_default=True, help="0: no end.")
@click.option("--uses", type=int, default=500, show_default=True, help="0: no limit.")
def give_grant(subject: str, **flags: Any) -> None:
    """Give SUBJECT a grant: provider:sub, provider:org:sub or hub:namespace/dataset."""
    wanted = {name: flags.pop(name) for name in ("run", "view", "dataset")}
    body: dict[str, Any] = {name: value for name, value in wanted.items() if value}
    rollouts = flags.pop("rollouts")
    if rollouts:
        body["rollouts"] = list(rollouts)
    body |= {
        "subject": subject,
        "kinds": list(flags.pop("kinds")),
        "purpose": flags.pop("purpose"),
    }
    body |= _terms(flags)
    print_json(_ask(flags, "POST", "/api/v1/grants", body))


def _terms(flags: dict[str, Any]) -> dict[str, Any]:
    days, uses = flags.pop("days"), flags.pop("uses")
    return {"expires_days": days or None, "max_uses": uses or None}


@grants.command("approve")
@click.argument("grant_id")
@options.store
@click.option("--days", type=float, default=7.0, show_default=True, help="0: no end.")
@click.option("--uses", type=int, default=500, show_default=True, help="0: no limit.")
def approve_grant(grant_id: str, **flags: Any) -> None:
    """Approve a request."""
    terms = _terms(flags)
    print_json(_ask(flags, "POST", f"/api/v1/grants/{grant_id}/approve", terms))


@grants.command("reject")
@click.argument("grant_id")
@options.store
@click.option("--reason", required=True, help="Why; they read it.")
def reject_grant(grant_id: str, reason: str, **flags: Any) -> None:
    """Reject a request."""
    print_json(_ask(flags, "POST", f"/api/v1/grants/{grant_id}/reject", {"reason": reason}))


@grants.command("revoke")
@click.argument("grant_id")
@options.store
@click.option("--reason", required=True, help="Why; they read it.")
def revoke_grant(grant_id: str, reason: str, **flags: Any) -> None:
    """Revoke a grant at once, also in the middle of a download."""
    print_json(_ask(flags, "DELETE", f"/api/v1/grants/{grant_id}", {"reason": reason}))


@click.group()
def visibility() -> None:
    """List and set who may see rollouts, runs and saved views."""


@visibility.command("list")
@options.store
def list_levels(**flags: Any) -> None:
    """Every level that is set, and the default."""
    print_json(_ask(flags, "GET", "/api/v1/visibility"))


@visibility.command("set")
@click.argument("target", type=click.Choice(["rollout", "run", "view"]))
@click.argument("name")
@click.argument("level", type=click.Choice(LEVELS))
@options.store
@click.option("--reason", default="", help="Why.")
def set_level(target: str, name: str, level: str, reason: str, **flags: Any) -> None:
    """Set who may see a rollout (by id), a run or a view (by name)."""
    body = {target: name, "level": None if level == "unset" else level, "reason": reason}
    print_json(_ask(flags, "POST", "/api/v1/visibility", body))


@click.group()
def roles() -> None:
    """List, give and take roles of persons."""


@roles.command("list")
@options.store
def list_roles(**flags: Any) -> None:
    """Roles that operators gave; those of the settings are not repeated."""
    print_json(_ask(flags, "GET", "/api/v1/roles"))


@roles.command("give")
@click.argument("subject")
@click.argument("role", type=click.Choice(["curator", "operator"]))
@options.store
@click.option("--reason", default="", help="Why.")
def give_role(subject: str, role: str, reason: str, **flags: Any) -> None:
    """Give SUBJECT (provider:sub) a role."""
    body = {"subject": subject, "role": role, "given": True, "reason": reason}
    print_json(_ask(flags, "POST", "/api/v1/roles", body))


@roles.command("take")
@click.argument("subject")
@click.argument("role", type=click.Choice(["curator", "operator"]))
@options.store
@click.option("--reason", default="", help="Why.")
def take_role(subject: str, role: str, reason: str, **flags: Any) -> None:
    """Take a role from SUBJECT."""
    body = {"subject": subject, "role": role, "given": False, "reason": reason}
    print_json(_ask(flags, "POST", "/api/v1/roles", body))


@click.group()
def audit() -> None:
    """Show the audit log and check that nothing was taken out of it."""


@audit.command("show")
@options.store
@click.option("--event", help="Only rows of this event, such as download.")
@click.option("--who", help="Only rows of this subject.")
@click.option("--limit", default=50, show_default=True)
def show_audit(event: str | None, who: str | None, limit: int, **flags: Any) -> None:
    """The newest rows."""
    given = {"event": event, "who": who, "limit": limit}
    query = urlencode({name: value for name, value in given.items() if value})
    print_json(_ask(flags, "GET", f"/api/v1/audit?{query}")["rows"])


@audit.command("check")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@options.store
@click.option("--head", help="A hash that was written down earlier and must be in the log.")
def check_audit(file: Path | None, head: str | None, **flags: Any) -> None:
    """Check the chain: of the server's log, or of FILE, its export /audit.jsonl."""
    if file is not None:
        report = check_file(file, head)
    else:
        query = urlencode({"check": "1", "limit": 1, **({"head": head} if head else {})})
        report = _ask(flags, "GET", f"/api/v1/audit?{query}")["chain"]
    print_json(report)
    if not report["whole"] or report.get("head_found") is False:
        raise click.exceptions.Exit(1)
