"""One store and one server for all page tests: the pages only read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.web import seeds
from tests.web.granted import GRANTED, granted
from tests.web.seeds import Maker
from tests.web.serving import Served, serving


@dataclass
class Site:
    """A served store with its seeds, and a client."""

    served: Served
    client: httpx.Client
    made: dict[str, Maker]

    def id(self, name: str) -> str:
        """The rollout id of a seed."""
        return self.made[name].rollout.rollout_id

    def url(self, path: str) -> str:
        """A path with `{seed}` replaced by its id, `{waiting}` and `{standing}` by grants."""
        ids = {name: self.id(name) for name in self.made}
        if any(f"{{{name}}}" in path for name in GRANTED):
            ids |= granted(self.served, self.made)
        return path.format(**ids)

    def text(self, path: str) -> str:
        """A page that must be there."""
        reply = self.client.get(self.url(path))
        assert reply.status_code == 200, (path, reply.status_code, reply.text[:300])
        return reply.text

    def json(self, path: str) -> dict[str, object]:
        """A twin that must be there."""
        reply = self.client.get(self.url(path))
        assert reply.status_code == 200, (path, reply.text[:300])
        found = reply.json()
        assert isinstance(found, dict)
        return found


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The seeds, served."""
    with serving(tmp_path_factory.mktemp("web")) as served:
        made = served.call(lambda: seeds.fill(served.store))
        with httpx.Client(base_url=served.url, timeout=60) as client:
            yield Site(served, client, made)


@pytest.fixture(scope="session")
def long_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """280 turns whose requests repeat everything before them."""
    with serving(tmp_path_factory.mktemp("long")) as served:
        made = served.call(lambda: seeds.fill(served.store))
        made["long"] = seeds.long_conversation()
        served.call(lambda: seeds.write(served.store, made["long"], 1.0, True, close=True))
        with httpx.Client(base_url=served.url, timeout=120) as client:
            yield Site(served, client, made)
