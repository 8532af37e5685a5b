"""Names: the Hub's own client says the same of each, and every rule is spelled out."""

from __future__ import annotations

import pytest
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from hypothesis import example, given
from hypothesis import strategies as st

from explorer.errors import HubNameInvalid
from explorer.export.hub.names import RULE, checked_name, name_problem
from explorer.export.hub.targets import target_of
from tests.hub.server import LocalHub

PART = st.text("aZ09-_.é /", max_size=12) | st.sampled_from(["a" * 96, "a" * 97, "x.git"])


@given(st.builds("{}/{}".format, PART, PART) | st.text(max_size=20))
@example("a/b.git")
@example("a/b\n")
@example("a/.b")
@example("a-/b")
@example("_/_")
@example("a/b/c")
@example("ns/" + "a" * 96)
def test_the_verdict_is_that_of_the_hubs_own_client(name: str) -> None:
    try:
        validate_repo_id(name)
        theirs = "/" in name
    except HFValidationError:
        theirs = False
    assert (name_problem(name) is None) == theirs


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("me/my--data", "-- or .. in it"),
        ("me/..x", "begins or ends with - or ."),
        ("me/" + "a" * 120, "120 characters long; at most 96"),
        ("My Data", "OWNER/NAME"),
        ("me/My Data", "has ' ' in it"),
        ("me/x.git", "ends in .git"),
        ("me/x-", "begins or ends with - or ."),
        ("me/\x1b[31mred", "has '\\x1b' '['"),
    ],
)
def test_hub_03_names_are_refused_with_the_rule_before_anything_is_asked(
    hub: LocalHub, ada: str, name: str, why: str
) -> None:
    for where in (name, f"hf://datasets/{name}", f"hf://buckets/{name}"):
        with pytest.raises(HubNameInvalid) as refused:
            target_of(where, token=ada, private=True, gated="", endpoint=hub.url)
        assert why in refused.value.message or where.startswith("hf://buckets/")
        assert RULE in refused.value.message
        assert refused.value.code == "hub_name_invalid"
        assert refused.value.message.isprintable()
    assert hub.faults.log == []


def test_a_name_that_can_be_is_given_back() -> None:
    assert checked_name("Ada-1/my_data.v2") == "Ada-1/my_data.v2"
