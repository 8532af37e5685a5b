"""A server with rollouts of every level, and people who ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from playwright.sync_api import Browser, BrowserContext, Page

from tests.oidc.served import Signed, signed
from tests.web import seeds
from tests.web.seeds import Maker

T = TypeVar("T")
PEOPLE = ("ana", "ben", "cleo")
# cleo decides; ana and ben ask.
OPERATORS = ("test:u-cleo",)


@dataclass
class Granted:
    """The server, its rollouts by name, and a signed-in browser of each person."""

    signed: Signed
    made: dict[str, Maker]
    contexts: dict[str, BrowserContext]

    @property
    def url(self) -> str:
        """Address of the server."""
        return self.signed.url

    def id(self, name: str) -> str:
        """Id of a rollout."""
        return str(self.made[name].rollout.rollout_id)

    def call(self, made: Callable[[], Awaitable[T]]) -> T:
        """Runs a coroutine on the server's loop."""

        async def go() -> T:
            return await made()

        loop = self.signed.live.loop
        return asyncio.run_coroutine_threadsafe(go(), loop).result(120)

    def add(self, made: Maker) -> str:
        """Writes one more rollout."""
        store = self.signed.live.store
        self.call(lambda: seeds.write(store, made, 1.0, True, close=True))
        self.made[made.rollout.task or str(made.rollout.rollout_id)] = made
        return str(made.rollout.rollout_id)

    def page(self, who: str) -> Page:
        """A page in the browser of a person; of anybody else, in a fresh one."""
        return self.contexts[who].new_page()

    def get(self, who: str, path: str) -> Any:
        """What a person's browser gets at a path, without following redirects."""
        return self.contexts[who].request.get(self.url + path, max_redirects=0)

    def operator(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        """One API call as the operator."""
        return self.signed.live.api(method, path, body, status=status)

    def level(self, level: str | None, **target: str) -> None:
        """Sets a level."""
        body = {**target, "level": level, "reason": "of the test"}
        self.operator("POST", "/api/v1/visibility", body)

    def give(self, who: str, *rollouts: str, **more: Any) -> dict[str, Any]:
        """A grant that nobody asked for."""
        body: dict[str, Any] = {
            "subject": f"test:u-{who}",
            "subject_name": who,
            "kinds": ["training_trace"],
            "purpose": "of the test",
        }
        if rollouts:
            body["rollouts"] = list(rollouts)
        given: dict[str, Any] = self.operator("POST", "/api/v1/grants", body | more, status=201)
        return given

    def token(self, who: str, *scopes: str) -> str:
        """An API token of a person, made at their account page."""
        page = self.page(who)
        page.goto(self.url + "/account")
        page.fill("input[name=label]", "of the test")
        for box in page.locator("input[name=scopes]").all():
            wanted = box.get_attribute("value") in scopes
            if box.is_checked() != wanted:
                box.click()
        page.click("main >> text=Make >> nth=-1")
        secret = page.inner_text("#secret").strip()
        page.close()
        return secret

    def sign_in_again(self, who: str) -> None:
        """After a role was given or taken, which ends sessions; the provider may remember."""
        page = self.page(who)
        page.goto(f"{self.url}/sign-in/test?next=/account")
        if not page.url.startswith(self.url):
            page.click(f"button[value=u-{who}]")
            page.wait_for_url(self.url + "/**")
        page.close()

    def client(self, who: str = "", token: str = "") -> httpx.Client:
        """A program: with a token, with the cookies of a person, or with nothing."""
        headers = {"accept-encoding": "identity"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        elif who:
            headers["cookie"] = "; ".join(
                f"{each['name']}={each['value']}" for each in self.contexts[who].cookies()
            )
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)


@contextmanager
def granted(folder: Path, browser: Browser, **settings: Any) -> Iterator[Granted]:
    """A running server whose rollouts are seen by whoever holds a grant, unless told
    otherwise; ana, ben and cleo are signed in, cleo is an operator."""
    settings.setdefault("operators", OPERATORS)
    with signed(folder, **settings) as site:
        contexts = {who: site.visitor(browser) for who in PEOPLE}
        contexts["nobody"] = site.visitor(browser)
        made = Granted(site, {}, contexts)
        store = site.live.store
        made.made.update(made.call(lambda: seeds.fill(store)))
        for who in PEOPLE:
            page = contexts[who].new_page()
            site.sign_in(page, who)
            page.close()
        try:
            yield made
        finally:
            for context in contexts.values():
                context.close()
