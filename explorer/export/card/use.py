"""How to load a dataset, train on it, and check it: code that a test runs.

Owns: the code blocks.
Must not know: anything of the rows but their columns.

No foreign text stands in code: only the dataset's name on the Hub, which was checked.
"""

from __future__ import annotations

from explorer.export.card.subject import CardSubject

MODEL = "path/to/model"

_LOAD = """\
from datasets import load_dataset

data = load_dataset("{where}", "sequences", split="train")
row = data[0]
trained = [token for token, bit in zip(row["token_ids"], row["loss_mask"]) if bit]
assert len(trained) == row["supervised_tokens"]
print(f"{{len(data)}} rows, {{sum(data['supervised_tokens'])}} tokens train")
"""

_LOAD_FACTS = """\
from datasets import load_dataset

data = load_dataset("{where}", "{config}", split="train")
print(data)
"""

_SFT = """\
import torch
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

model, gpu = "{model}", torch.cuda.is_available()

def labelled(row):
    pairs = zip(row["token_ids"], row["loss_mask"])
    return {{"input_ids": row["token_ids"], "labels": [t if bit else -100 for t, bit in pairs]}}

data = load_dataset("{where}", "sequences", split="train")
data = data.map(labelled, remove_columns=data.column_names)
args = SFTConfig("out", max_length=None, num_train_epochs=1, bf16=gpu, use_cpu=not gpu)
SFTTrainer(model, args=args, train_dataset=data).train()
"""

_SFT_READY = """\
import torch
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

model, gpu = "{model}", torch.cuda.is_available()
data = load_dataset("{where}", "sft", split="train").select_columns(["input_ids", "labels"])
args = SFTConfig("out", max_length=None, num_train_epochs=1, bf16=gpu, use_cpu=not gpu)
SFTTrainer(model, args=args, train_dataset=data).train()
"""

_GRPO = """\
import torch
from datasets import Dataset, load_dataset
from trl import GRPOConfig, GRPOTrainer

N, model, gpu, groups = 2, "{model}", torch.cuda.is_available(), {{}}
for row in load_dataset("{where}", "grpo", split="train"):
    if row["reward"] is not None:  # nobody scored it, which is not 0
        groups.setdefault(row["group"] or row["task"] or row["run"], []).append(row)
prompts = [{{"prompt": name}} for name, rows in groups.items() if len(rows) >= N]

def rollouts(prompts, trainer):
    rows = [groups[prompt][place % N] for place, prompt in enumerate(prompts)]
    columns = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")
    return {{name: [row[name] for row in rows] for name in columns}}

GRPOTrainer(
    model, reward_funcs=lambda reward, **others: reward, rollout_func=rollouts,
    args=GRPOConfig("out", num_generations=N, per_device_train_batch_size=N,
                    num_train_epochs=1, bf16=gpu, use_cpu=not gpu),
    train_dataset=Dataset.from_list(prompts),
).train()
"""

_VERIFY = """\
hf download {where} --repo-type dataset --local-dir data
rollout-explorer verify data
"""

_VERIFY_HERE = """\
rollout-explorer verify {where}
"""


def loading(subject: CardSubject) -> str:
    """How to load it."""
    if not subject.configs:
        return "There is no row to load."
    default = next(iter(subject.configs))
    block = _LOAD if default == "sequences" else _LOAD_FACTS
    names = ", ".join(f"`{name}`" for name in subject.configs)
    here = "" if subject.on_hub else f" `{subject.where}` stands for this folder."
    return (
        f"Configs: {names}; the first is the default.{here}\n\n"
        + _python(block.format(where=subject.where, config=default))
        + "\n\nIds are `int32`, logprobs `float32` (null where none was given, never 0), "
        "masks `int8`. Columns of JSON are text, exactly as recorded."
    )


def training(subject: CardSubject) -> str:
    """How to train on it."""
    configs, where = subject.configs, subject.where
    if "sequences" not in configs:
        return "Nothing in this dataset may train."
    ready = "sft" in configs
    block = (_SFT_READY if ready else _SFT).format(where=where, model=MODEL)
    words = [
        "Supervised fine-tuning with TRL, on the model that sampled or one with the same "
        "tokenizer. `max_length=None` matters: else rows are cut after 1024 tokens.",
        _python(block),
    ]
    if "grpo" in configs and subject.facts["rewards"]["scored"]:
        words += [
            "GRPO with TRL, from what was captured: no engine is asked. TRL corrects nothing "
            "for the distance to the policy that sampled, so use few epochs. `N` rollouts of "
            "a group are compared with each other, here its first ones; equal rewards teach "
            "nothing. TRL wants one row a rollout: see `left_out_tokens`.",
            _python(_GRPO.format(where=where, model=MODEL)),
        ]
    return "\n\n".join(words)


def verifying(subject: CardSubject) -> str:
    """How to check it without the server that made it."""
    block = _VERIFY if subject.on_hub else _VERIFY_HERE
    return (
        "No server is needed. Digests, schemas and every rule of the training rows are "
        "checked, each rollout is judged again from its own rows, and this card is compared "
        "with the manifest.\n\n```sh\n" + block.format(where=subject.where) + "```"
    )


def _python(code: str) -> str:
    return f"```python\n{code}```"
