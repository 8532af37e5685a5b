"""Chat templates as they are in the world, extended behind a reply; TRL asked about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from explorer.engine.local.prompts import LocalPrompts
from explorer.engine.suffix import Extend, TemplateSuffix
from explorer.engine.tiny.weights import SHIPPED

trl = pytest.importorskip(
    "trl", reason="trl is not installed: `make test-consumers` runs these"
)
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
CALL = {"id": "a", "type": "function", "function": {"name": "ls", "arguments": '{"a": 1}'}}
ASKED = {"role": "user", "content": "a"}
CASES = (
    (
        {"role": "assistant", "content": "b", "reasoning": "hm"},
        {"role": "user", "content": "c"},
    ),
    (
        {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning": "hm"},
        {"role": "tool", "tool_call_id": "a", "name": "ls", "content": "85"},
    ),
)


def prompts_of(name: str, folder: Path) -> LocalPrompts:
    """The shipped tokenizer, which has ChatML's marks, with a template of TRL's."""
    made = PreTrainedTokenizerFast(
        tokenizer_file=str(SHIPPED / "tokenizer.json"), eos_token="<|im_end|>"
    )
    made.chat_template = (TEMPLATES / f"{name}.jinja").read_text("utf-8")
    made.save_pretrained(folder)
    return LocalPrompts(folder)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_training", "qwen2_5", "qwen2_5_training"])
def test_qwens_templates_are_extended_whatever_trl_says(name: str, tmp_path: Path) -> None:
    prompts = prompts_of(name, tmp_path)
    suffix = TemplateSuffix(prompts)
    from trl.chat_template_utils import is_chat_template_prefix_preserving

    theirs = is_chat_template_prefix_preserving(prompts._chat)
    assert suffix.preserving() == theirs
    if name == "qwen3":
        assert not theirs
    end = prompts.tokenizer.id_of("<|im_end|>")
    assert end is not None
    for reply, new in CASES:
        body: dict[str, Any] = {"messages": [ASKED, reply, new]}
        found = suffix.extend(Extend(body, 1, end, prompts.ids({"messages": [ASKED]})))
        assert found.reason is None
        assert found.suffix is not None
        text = b"".join(map(prompts.tokenizer.raw, found.suffix)).decode()
        assert text.startswith("\n<|im_start|>user\n")
        assert text.endswith("<|im_start|>assistant\n")
        assert new["content"] in text
