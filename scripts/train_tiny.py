"""Train the tiny engine's shipped model, from nothing, on the CPU.

    python -m scripts.train_tiny --seed 7

Needs torch (the `train` extra); everything else in the project does without it. The tokenizer
and all fillers come from the text that Python itself brings along (`make_corpus`), the tasks
from `tiny_tasks`. Only assistant tokens after the last user message count in the loss. Phase
one uses short conversations with random gaps in the positions; phase two puts real long text
in front.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2.sandbox
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional

from scripts.make_corpus import Corpus, make_corpus
from scripts.tiny_network import Cache, Network, Shape
from scripts.tiny_tasks import Conversation, Filler, sample

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen's pre-tokenizer: every digit is a token of its own."""
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
PAD, START, END = 0, 1, 2
TEXT_WEIGHT = 0.15
"""How much a token of open-ended text counts: nobody can guess it, so it is mostly noise."""
Row = tuple[list[int], list[float]]
"""The ids of a conversation, and how much each of them counts in the loss."""


def make_filler(corpus: Corpus) -> Filler:
    """Random pieces of the corpus, prose twice as often as code, cut at word ends."""
    texts = ["\n\n".join(corpus.english), "\n\n".join(corpus.code)]

    def filler(rng: random.Random, length: int) -> str:
        text = texts[0] if rng.random() < 0.67 else texts[1]
        start = rng.randrange(len(text) - length - 100)
        piece = text[start : start + length + 60]
        return piece[piece.find(" ") + 1 :][:length].strip() or "text"

    return filler


def train_tokenizer(
    corpus: Corpus, filler: Filler, render: Callable[[Conversation], str], size: int
) -> Tokenizer:
    """A byte-level BPE of exactly `size` ids over prose, code and some of the tasks."""
    rng = random.Random(1)
    english, code = "\n\n".join(corpus.english), "\n\n".join(corpus.code)
    tasks = "\n".join(render(sample(rng, lambda _r, _n: "x")) for _ in range(1500))
    for marker in (*SPECIAL, *ADDED):
        tasks = tasks.replace(marker, "\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(ADDED),
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    share = 1_600_000
    tokenizer.train_from_iterator([english[:share], code[:share], tasks], trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    return tokenizer


def make_renderer(template: str) -> Callable[[Conversation], str]:
    """Renders with the shipped chat template, as the engine does."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    compiled = environment.from_string(template)
    return lambda talk: compiled.render(
        messages=talk.messages, tools=talk.tools, add_generation_prompt=False
    )


class Data:
    """Batches of tokenised conversations; one instance has one random stream."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        render: Callable[[Conversation], str],
        filler: Filler,
        seed: int,
        repeats: float,
    ) -> None:
        self.tokenizer, self.render, self.filler = tokenizer, render, filler
        self.rng, self.careless, self.repeats = random.Random(seed), 0.0, repeats
        self.header = tokenizer.encode("<|im_start|>assistant\n").ids
        self.lead = tokenizer.encode("<|im_start|>system\n").ids

    def encode(self, talk: Conversation) -> Row:
        """Only the assistant turns after the last user message are learnt."""
        ids = self.tokenizer.encode(self.render(talk)).ids
        after = max(i for i, m in enumerate(talk.messages) if m["role"] == "user")
        wanted = sum(m["role"] == "assistant" for m in talk.messages[after:])
        starts = [i for i in range(len(ids)) if ids[i : i + len(self.header)] == self.header]
        learnt = [0.0] * len(ids)
        for start in starts[-wanted:]:
            place = start + len(self.header)
            while True:
                if ids[place] == END and talk.open_ended:
                    break
                learnt[place] = TEXT_WEIGHT if talk.open_ended else 1.0
                if ids[place] == END:
                    break
                place += 1
        return ids, learnt

    def draw(self, count: int, limit: int, stretch: int = 1) -> list[Row]:
        """`count` conversations of at most `limit` tokens, of similar length.

        `stretch` makes the arbitrary texts in them so many times longer.
        """

        def filler(rng: random.Random, length: int) -> str:
            return self.filler(rng, length * stretch)

        found = []
        while len(found) < 4 * count:
            ids, learnt = self.encode(sample(self.rng, filler, self.careless, self.repeats))
            if len(ids) <= limit:
                found.append((ids, learnt))
        found.sort(key=lambda pair: len(pair[0]))
        first = self.rng.randrange(4) * count
        return found[first : first + count]

    def positions(self, ids: list[int], reach: int) -> list[int]:
        """0, 1, 2, ... with random jumps of up to `reach` in front of some messages."""
        jump, found = 0, []
        chance = 0.5
        for index, token in enumerate(ids):
            if token == START and index and self.rng.random() < chance:
                jump += int(math.exp(self.rng.uniform(2, math.log(max(reach - jump, 9)))))
                jump = min(jump, reach)
                chance = 0.15
            found.append(index + jump)
        return found

    def tensors(self, rows: list[Row], reach: int, first: int = 0) -> tuple[torch.Tensor, ...]:
        """Ids, positions, targets and their weights, padded on the right."""
        width = max(len(ids) for ids, _ in rows)
        ids = torch.full((len(rows), width), PAD)
        positions = torch.zeros(len(rows), width, dtype=torch.long)
        targets = torch.full((len(rows), width), PAD)
        weights = torch.zeros(len(rows), width)
        for row, (tokens, learnt) in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            places = torch.tensor(
                self.positions(tokens, reach) if reach else list(range(len(tokens)))
            )
            positions[row, : len(tokens)] = places + first
            targets[row, : len(tokens) - 1] = torch.tensor(tokens[1:])
            weights[row, : len(tokens) - 1] = torch.tensor(learnt[1:])
        return ids, positions, targets, weights


class Lesson:
    """The loss of batches, with a running mean of how badly digits are guessed."""

    def __init__(self, network: Network, digits: list[int]) -> None:
        self.network = network
        self.digits = torch.tensor(digits)
        self.digit_losses: list[float] = []

    def loss(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        targets: torch.Tensor,
        weights: torch.Tensor,
        past: Cache | None = None,
    ) -> torch.Tensor:
        """Weighted mean cross-entropy over the learnt tokens."""
        hidden, _ = self.network(ids, positions, past)
        chosen = weights > 0
        wanted, share = targets[chosen], weights[chosen]
        each = functional.cross_entropy(
            self.network.logits(hidden[chosen]), wanted, reduction="none"
        )
        sure = torch.isin(wanted, self.digits) & (share == 1)
        self.digit_losses += each[sure].tolist()
        return (each * share).sum() / share.sum()


def long_prefix(network: Network, data: Data, length: int) -> Cache:
    """Keys and values of a system message that starts with `length` tokens of real text.

    They carry no gradient: one prefix is shared by a whole batch, which costs a tenth of
    training on full sequences, and what has to be learnt is to look past it.
    """
    ids = list(data.lead)
    while len(ids) < length:
        text = data.filler(data.rng, min(9000, 3 * length)) + "\n\n"
        ids += data.tokenizer.encode(text).ids
    tokens = torch.tensor([ids[:length]])
    with torch.no_grad():
        _, past = network(tokens, torch.arange(length)[None])
    return past


def long_loss(lesson: Lesson, data: Data, count: int, longest: int) -> torch.Tensor:
    """The loss of `count` conversations behind one shared long prefix."""
    length = int(math.exp(data.rng.uniform(math.log(300), math.log(longest))))
    past = long_prefix(lesson.network, data, length)
    rows = [
        (ids[len(data.lead) :], learnt[len(data.lead) :])
        for ids, learnt in data.draw(count, 400)
    ]
    return lesson.loss(*data.tensors(rows, 0, length), past)


def rate(step: int, options: argparse.Namespace) -> float:
    """Learning rate: warm-up, then a cosine down to a tenth."""
    total = options.steps + options.long_steps
    if step < options.warmup:
        return float(options.rate) * (step + 1) / options.warmup
    done = (step - options.warmup) / max(1, total - options.warmup)
    return float(options.rate) * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def measure_tokenizer(tokenizer: Tokenizer, corpus: Corpus) -> dict[str, float]:
    """Characters a token on the end of each corpus, which the merges did not see."""
    found = {}
    for name, texts in (("english", corpus.english), ("code", corpus.code)):
        text = "\n\n".join(texts)[-300_000:]
        found[name] = round(len(text) / len(tokenizer.encode(text).ids), 3)
    return found


def export(network: Network, tokenizer: Tokenizer, template: str, out: Path) -> None:
    """Write the model folder in the Hugging Face layout."""
    out.mkdir(parents=True, exist_ok=True)
    shape = network.shape
    files: dict[str, dict[str, Any]] = {
        "config.json": shape.config(END, PAD),
        "generation_config.json": {"eos_token_id": END, "pad_token_id": PAD},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIAL[END],
            "pad_token": SPECIAL[PAD],
            "model_max_length": shape.positions,
        },
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    save_file(network.tensors(), str(out / "model.safetensors"), {"format": "pt"})


def make_optimizers(network: Network, muon: bool) -> list[torch.optim.Optimizer]:
    """AdamW; with `muon` the matrices inside the layers get that instead.

    Each group's `initial_lr` is its rate relative to the schedule.
    """
    inner = [p for name, p in network.named_parameters() if name.endswith("proj.weight")]
    vectors = [p for p in network.parameters() if p.ndim == 1]
    embedding = [network.embed_tokens.weight]
    groups = [{"params": vectors, "weight_decay": 0.0}, {"params": embedding}]
    if not muon:
        groups.append({"params": inner})
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.98), weight_decay=0.05)
    ]
    if muon:
        found.append(torch.optim.Muon(inner, lr=4.0, weight_decay=0.01))
    for optimizer in found:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return found


def train(
    options: argparse.Namespace, network: Network, data: Data, keep: Callable[[int], None]
) -> list[list[float]]:
    """Run both phases; gives [step, loss, loss of digits, seconds] rows."""
    optimizers = make_optimizers(network, options.muon)
    lesson = Lesson(network, data.tokenizer.encode("0123456789").ids)
    began, rows, recent = time.monotonic(), [], []
    for step in range(options.stop_after or options.steps + options.long_steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate(step, options)
        # Carelessness would only delay the learning of copying itself.
        late = step >= options.steps or options.resume is not None
        data.careless = options.careless if late else 0.0
        # Only long ones would make it forget short prompts within a hundred steps.
        if step < options.steps or step % 2:
            wide = step >= options.steps and step % 4 == 1
            batch = data.draw(2, 2000, 5) if wide else data.draw(options.batch, options.limit)
            loss = lesson.loss(*data.tensors(batch, options.reach))
        else:
            loss = long_loss(lesson, data, options.long_batch, options.longest)
        network.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        recent.append(loss.item())
        if (step + 1) % 25 == 0:
            digits = lesson.digit_losses
            rows.append(
                [
                    step + 1,
                    round(sum(recent) / len(recent), 4),
                    round(sum(digits) / len(digits), 4),
                    round(time.monotonic() - began, 1),
                ]
            )
            sys.stderr.write("step {} loss {} digits {} after {} s\n".format(*rows[-1]))
            recent, lesson.digit_losses = [], []
        if (step + 1) % options.keep_every == 0:
            keep(step + 1)
    return rows


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("explorer/engine/tiny/weights"))
    parser.add_argument("--checkpoints", type=Path, help="also keep a model here now and then")
    parser.add_argument("--resume", type=Path, help="a model folder to go on from")
    parser.add_argument("--keep-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--steps", type=int, default=650, help="short steps")
    parser.add_argument(
        "--long-steps",
        type=int,
        default=550,
        help="steps after those, every other one with a long prefix",
    )
    parser.add_argument(
        "--careless",
        type=float,
        default=0.04,
        help="chance of a wrongly copied digit in the training data",
    )
    parser.add_argument(
        "--repeats", type=float, default=0.0, help="share of conversations that only echo words"
    )
    parser.add_argument(
        "--stop-after",
        type=int,
        default=0,
        help="end after this step of the same plan; 0 for all of it",
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--long-batch", type=int, default=8)
    parser.add_argument("--limit", type=int, default=420, help="longest short conversation")
    parser.add_argument("--longest", type=int, default=8000, help="longest prefix, tokens")
    parser.add_argument("--reach", type=int, default=8000, help="largest position jump")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--warmup", type=int, default=60)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--muon", type=int, default=1, help="0 for AdamW only")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def command(options: argparse.Namespace) -> str:
    """The command that trains the same model, without where it was written to."""
    parts = ["python -m scripts.train_tiny"]
    for name, value in sorted(vars(options).items()):
        if name not in ("out", "checkpoints", "keep_every") and value is not None:
            parts.append(f"--{name.replace('_', '-')} {value}")
    return " ".join(parts)


def main() -> None:
    options = parse_options()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    corpus = make_corpus()
    filler = make_filler(corpus)
    here = Path(__file__).resolve().parent.parent
    template = (here / "explorer/engine/tiny/weights/chat_template.jinja").read_text("utf-8")
    render = make_renderer(template)
    if options.resume is None:
        tokenizer = train_tokenizer(corpus, filler, render, options.vocab)
    else:
        tokenizer = Tokenizer.from_file(str(options.resume / "tokenizer.json"))
    density = measure_tokenizer(tokenizer, corpus)
    network = Network(Shape(vocab_size=tokenizer.get_vocab_size()))
    if options.resume is not None:
        network.load_tensors(load_file(options.resume / "model.safetensors"))
    size = sum(p.numel() for p in network.parameters())
    sys.stderr.write(f"{size} parameters, characters a token {density}\n")
    data = Data(tokenizer, render, filler, options.seed, options.repeats)

    def keep(step: int) -> None:
        if options.checkpoints:
            export(network, tokenizer, template, options.checkpoints / f"step{step:05d}")

    began = time.process_time()
    losses = train(options, network, data, keep)
    export(network, tokenizer, template, options.out)
    report: dict[str, Any] = {
        "command": command(options),
        "seed": options.seed,
        "parameters": size,
        "steps": options.steps,
        "long_steps": options.long_steps,
        "characters_per_token": density,
        "losses": losses,
        "cpu_seconds": round(time.process_time() - began),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
    if options.resume is not None:
        before = options.resume / "training_report.json"
        report["before"] = json.loads(before.read_text("utf-8"))
    (options.out / "training_report.json").write_text(
        json.dumps(report) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
