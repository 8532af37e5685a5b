"""A setting that does not work is named in one sentence, never in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from explorer.errors import ConfigurationError
from explorer.settings import load


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PROVIDERS", "nonsense", "a variable that takes JSON holds none"),
        ("PROVIDERS", '{"name": "x"}', "ROLLOUT_EXPLORER_PROVIDERS: Input should be a list"),
        (
            "PROVIDERS",
            '[{"name": "x"}]',
            "PROVIDERS, 0, issuer: Field required",
        ),
        ("RETENTION", '{"secret": {"days": 3}}', "ROLLOUT_EXPLORER_RETENTION, secret: "),
        ("PORT", "x", "ROLLOUT_EXPLORER_PORT: "),
    ],
)
def test_a_variable_that_does_not_work_is_named(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ROLLOUT_EXPLORER_{variable}", value)
    with pytest.raises(ConfigurationError) as refused:
        load()
    assert said in str(refused.value)
    assert "[KEY]" not in str(refused.value)
    assert "Value error" not in str(refused.value)


def test_a_file_that_is_no_toml_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("port = = 3", "utf-8")
    monkeypatch.setenv("ROLLOUT_EXPLORER_CONFIG", str(wrong))
    with pytest.raises(ConfigurationError, match="ROLLOUT_EXPLORER_CONFIG names is no TOML"):
        load()
