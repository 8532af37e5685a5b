"""A whole server whose visitors sign in with a real provider, and how they do it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, BrowserContext, Page

from explorer.engine.scripted import ScriptedEngine
from tests.live import Live, serving
from tests.oidc.provider import RealProvider, free_port, provider

ENGINE = [{"when": {"contains": ""}, "text": "ok"}]


@dataclass
class Signed:
    """A server, and the provider it knows as `test`."""

    live: Live
    provider: RealProvider
    port: int

    @property
    def url(self) -> str:
        """The address of the server."""
        return self.live.url

    def visitor(self, browser: Browser, **options: Any) -> BrowserContext:
        """A browser of its own, without any cookie."""
        return browser.new_context(**options)

    def sign_in(self, page: Page, who: str, next: str = "/account", query: str = "") -> None:
        """Signs `ana`, `ben` or `cleo` in by the provider's real pages."""
        page.goto(f"{self.url}/sign-in/test?next={next}{query}")
        page.click(f"button[value=u-{who}]")
        page.wait_for_url(self.url + "/**")

    def whoami(self, context: BrowserContext) -> dict[str, Any]:
        """Who the server takes a browser for."""
        found: dict[str, Any] = context.request.get(self.url + "/api/v1/whoami").json()
        return found

    def audit(self, event: str) -> list[dict[str, Any]]:
        """Rows of the audit log of one event, the newest first."""
        return self.live.application.sign_in.audit.page({"event": event}, None, 100)

    def operator(self) -> httpx.Client:
        """A client that shows the operator's token."""
        headers = {"authorization": f"Bearer {self.live.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)


@contextmanager
def signed(
    folder: Path, *, provider_settings: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Signed]:
    """A running server with the real provider; nobody is the operator without the token."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings.setdefault("public_url", url)
    with (
        provider([f"{url}/sign-in/test/callback"]) as real,
        serving(
            ScriptedEngine(ENGINE),
            folder / "signed.duckdb",
            listen_port=port,
            providers=(real.settings(**(provider_settings or {})),),
            **settings,
        ) as live,
    ):
        yield Signed(live, real, port)
