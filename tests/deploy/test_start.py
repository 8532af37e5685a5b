"""What a server refuses to start with."""

from __future__ import annotations

import pytest

from explorer.errors import ConfigurationError
from explorer.settings import load

PROVIDER = {"name": "hub", "issuer": "https://huggingface.co", "client_id": "x"}


def test_providers_of_sign_in_do_not_replace_the_operators_token() -> None:
    with pytest.raises(ConfigurationError, match="ROLLOUT_EXPLORER_ADMIN_TOKEN"):
        load(host="0.0.0.0", providers=[PROVIDER])
    settings = load(host="0.0.0.0", providers=[PROVIDER], admin_token="t" * 40)
    assert settings.providers[0].name == "hub"


def test_only_the_loud_flag_replaces_it() -> None:
    assert load(host="0.0.0.0", allow_public_without_auth=True).admin_token is None
