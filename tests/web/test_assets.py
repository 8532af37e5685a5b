"""Vendored files are what their manifests say; addresses change with the bytes."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest

from explorer.web.assets import find, static_url
from tests.web.conftest import Site

BROWSER = Path(__file__).parent.parent / "browser" / "vendor"


@pytest.mark.parametrize("folder", [find("static") / "vendor", BROWSER], ids=str)
def test_vendored_files_match_their_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["files"]:
        digest = hashlib.sha384((folder / entry["file"]).read_bytes()).digest()
        assert entry["sha384"] == "sha384-" + base64.b64encode(digest).decode()
        assert entry["version"]
        assert (folder / entry["licence_file"]).stat().st_size > 100
    listed = {entry["file"] for entry in manifest["files"]}
    found = {path.name for path in folder.iterdir() if path.suffix in (".js", ".css")}
    assert found == listed


def test_hashed_address_may_be_kept_for_ever(site: Site) -> None:
    address = static_url("explorer.css")
    reply = site.client.get(address)
    assert "immutable" in reply.headers["cache-control"]
    assert hashlib.sha256(reply.content).hexdigest().startswith(address.split("v=")[1])


@pytest.mark.parametrize("query", ["", "?v=", "?v=000000000000"])
def test_other_addresses_are_checked_again(site: Site, query: str) -> None:
    reply = site.client.get(f"/static/explorer.css{query}")
    assert reply.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("name", ["nothing.js", "../pyproject.toml", "%2e%2e/pyproject.toml"])
def test_nothing_else_is_served(site: Site, name: str) -> None:
    assert site.client.get(f"/static/{name}").status_code == 404
