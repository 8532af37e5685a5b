"""The custody tab: receipts as they were issued, links that hold, and what does not."""

from __future__ import annotations

from typing import Any

from tests.web.conftest import Site
from tests.web.parsing import read


def twin(site: Site, name: str, check: bool = False) -> Any:
    return site.json(f"/rollouts/{{{name}}}/custody.json" + ("?check=1" if check else ""))


def test_a_closed_rollout_shows_its_receipt_as_issued(site: Site) -> None:
    (receipt,) = twin(site, "small")["receipts"]
    assert (receipt["number"], receipt["state"]) == (1, "as issued")
    assert receipt["sha256"] == receipt["issued_sha256"]
    assert receipt["signature"] == "none"
    # Asked again it is the same one.
    assert twin(site, "small")["receipts"] == [receipt]
    text = read(site.text("/rollouts/{small}/custody")).text
    assert "as issued" in text
    assert "not signed" in text
    assert "Check every link" in text


def test_links_are_made_again_when_they_are_asked_for(site: Site) -> None:
    plain, checked = twin(site, "small"), twin(site, "small", check=True)
    assert not plain["checked"]
    assert {row["link"] for row in plain["rows"]} == {""}
    assert checked["checked"]
    held = [row for row in checked["rows"] if row["link"] == "holds"]
    assert checked["held"] == len(held)
    assert "links made again hold" in read(site.text("/rollouts/{small}/custody?check=1")).text


def test_an_open_rollout_has_no_receipt_and_says_why(site: Site) -> None:
    assert twin(site, "open")["receipts"] == []
    assert "Closing it issues the first one" in read(site.text("/rollouts/{open}/custody")).text
