"""Runs the code of a card as it stands, and says what the real trainers did with it.

    python run_card.py CARD MODEL OUT

In a process of its own: `HF_ENDPOINT` and the like are read when `datasets` is imported. OUT is
written as JSON: each config that the card names with its rows and types, and for each trainer
the tokens that had a gradient, beside those that were supposed to.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The one thing that a reader must fill in.
GAP = '"path/to/model"'


def watched_sft(found: dict[str, Any]) -> Any:
    """SFTTrainer that counts labels, and positions whose last hidden state has a gradient:
    nothing mixes positions after it, and the trainer builds no logits."""
    from trl import SFTTrainer

    class Watched(SFTTrainer):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.model.base_model.norm.register_forward_hook(self.keep)

        def keep(self, _: Any, __: Any, hidden: Any) -> None:
            hidden.retain_grad()
            self.hidden = hidden

        def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
            labels = inputs["labels"].clone()
            loss = super().training_step(model, inputs, *more)
            # What stands at a position tells the next token.
            trained = (self.hidden.grad != 0).any(-1)
            wanted = (labels != -100).roll(-1, 1)
            for name, n in (
                ("steps", 1),
                ("labels", (labels != -100).sum()),
                ("gradients", trained.sum()),
                ("elsewhere", (trained != wanted).sum()),
            ):
                found[name] = found.get(name, 0) + int(n)
            return loss

    return Watched


def watched_grpo(found: dict[str, Any]) -> Any:
    """GRPOTrainer that counts the mask's ones and gradients of rows with an advantage."""
    from tests.consumers.training import rows_of, trainer_class

    class Watched(trainer_class()):  # type: ignore[misc]
        def training_step(self, *given: Any, **named: Any) -> Any:
            loss = super().training_step(*given, **named)
            for row in rows_of(self.steps.pop()):
                trained = [bool(value) for value in row["gradient"]]
                wanted = [bool(bit) for bit in row["mask"]]
                found["rows"] = found.get("rows", 0) + 1
                found["mask"] = found.get("mask", 0) + sum(wanted)
                found["beyond"] = found.get("beyond", 0) + sum(map(bool, row["beyond"]))
                if row["advantage"]:
                    found["gradients"] = found.get("gradients", 0) + sum(trained)
                    found["elsewhere"] = found.get("elsewhere", 0) + (trained != wanted)
            found["steps"] = found.get("steps", 0) + 1
            return loss

    return Watched


def load(card: str) -> dict[str, Any]:
    """Every config, by the place that the card's own code names."""
    import yaml
    from datasets import load_dataset

    place = re.search(r'load_dataset\("([^"]+)"', card)
    assert place is not None
    told = {}
    for config in yaml.safe_load(card.split("---\n")[1])["configs"]:
        data = load_dataset(place[1], config["config_name"], split="train")
        told[config["config_name"]] = {
            "rows": len(data),
            "types": {
                name: str(kind)
                for name, kind in zip(
                    data.column_names, data.features.arrow_schema.types, strict=True
                )
            },
            "first": repr(data[0])[:200],
        }
    default = load_dataset(place[1], split="train")
    return told | {"": {"rows": len(default)}}


def main() -> None:
    card, model, out = Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2], sys.argv[3]
    import trl

    told: dict[str, Any] = {"configs": load(card), "sft": {}, "grpo": {}, "blocks": 0}
    trl.SFTTrainer = watched_sft(told["sft"])
    trl.GRPOTrainer = watched_grpo(told["grpo"])
    for block in BLOCK.findall(card):
        exec(compile(block.replace(GAP, repr(model)), "card", "exec"), {})
        told["blocks"] += 1
    Path(out).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
