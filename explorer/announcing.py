"""What a server says when it is up. Wiring only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click

from explorer import __version__
from explorer.settings import Settings


def announce(settings: Settings) -> Callable[[Any, str], Awaitable[bool]]:
    """Prints address, store, engine and operator; the server then goes on serving."""

    async def ready(application: Any, url: str) -> bool:
        certificate = application.certificate
        click.echo(f"Rollout Explorer {__version__}")
        click.echo(f"  pages     {url}/")
        click.echo(f"  store     {settings.store} (one process owns it)")
        if certificate is not None:
            click.echo(
                f"  engine    {certificate.engine_name} {certificate.engine_version}, "
                f"model {certificate.model}: capture {certificate.capture_level.value}, "
                f"logprobs {certificate.logprob_kind.value}"
                + ("" if certificate.passing else " (not trainable)")
            )
        if settings.custody == "external" and not settings.read_only:
            click.echo(
                "  custody   external: the engine keeps the tokens, nothing trains from here; "
                f"manifests need ${settings.nemo_gym_control_token_env}"
            )
        if settings.admin_token is None and settings.on_loopback:
            click.echo(f"  operator  {application.operator.token}")
        click.echo("  stop      Ctrl-C")
        return True

    return ready
