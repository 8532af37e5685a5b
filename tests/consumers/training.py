"""The real GRPOTrainer over the tiny model, and what its loss did to every token."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def model_and_tokenizer(weights: Path) -> tuple[Any, Any]:
    """The shipped tiny model, as transformers loads it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(weights)


def config(folder: Path, **more: Any) -> Any:
    from trl import GRPOConfig

    return GRPOConfig(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 4,
            "num_generations": 2,
            "max_steps": 2,
            "learning_rate": 1e-4,
            "temperature": 1.0,
            "report_to": [],
            "save_strategy": "no",
            "logging_steps": 1,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "disable_tqdm": True,
            **more,
        }
    )


def trainer_class() -> Any:
    """GRPOTrainer that keeps, for every step, its inputs and d loss / d logp."""
    from trl import GRPOTrainer

    class Watched(GRPOTrainer):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.steps: list[dict[str, Any]] = []

        def _get_per_token_logps_and_entropies(self, *given: Any, **named: Any) -> Any:
            found = super()._get_per_token_logps_and_entropies(*given, **named)
            if found[0].requires_grad:
                found[0].retain_grad()
                self.watched = found[0]
            return found

        def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
            loss = super().training_step(model, inputs, *more)
            kept = self._buffered_inputs[self._step % len(self._buffered_inputs) - 1]
            self.steps.append(
                {
                    "logps": self.watched.detach().clone(),
                    "gradient": self.watched.grad.clone(),
                    **{name: value for name, value in kept.items() if hasattr(value, "shape")},
                }
            )
            return loss

    return Watched


def rows_of(step: dict[str, Any]) -> list[dict[str, Any]]:
    """A step's rows without padding: ids, mask, gradient, logps, the captured logprobs."""
    found = []
    for place in range(step["completion_ids"].shape[0]):
        length = int(step["completion_mask"][place].sum())
        begins = int((step["prompt_mask"][place] == 0).sum())
        found.append(
            {
                "prompt": tuple(step["prompt_ids"][place][begins:].tolist()),
                "ids": tuple(step["completion_ids"][place][:length].tolist()),
                "mask": tuple(step["tool_mask"][place][:length].tolist()),
                "gradient": step["gradient"][place][:length].tolist(),
                "beyond": step["gradient"][place][length:].tolist(),
                "logps": step["logps"][place][:length].tolist(),
                "captured": step["sampling_per_token_logps"][place][:length].tolist(),
                "advantage": float(step["advantages"][place]),
            }
        )
    return found
