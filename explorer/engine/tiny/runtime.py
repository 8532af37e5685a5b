"""A loaded model that answers chat bodies: template, tokenizer, scheduler and replies joined.

Owns: that composition, without IO; the child process steps it. Must not know: pipes, asyncio.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from explorer.engine.completion import given_ids, is_prompt
from explorer.engine.protocol import EngineFacts
from explorer.engine.tiny.model import Decoder
from explorer.engine.tiny.parts import Parts
from explorer.engine.tiny.reply import Generation, ReplyWriter, write_error
from explorer.engine.tiny.request import ChatRequest, read_request, refusal
from explorer.engine.tiny.sampling import LogprobsMode
from explorer.engine.tiny.scheduler import Finished, Job, Scheduler
from explorer.engine.tiny.scoring import Scorer
from explorer.engine.tiny.template import ChatTemplate
from explorer.engine.tiny.text import TextTrail
from explorer.engine.tiny.tokenizer import ByteTokenizer
from explorer.engine.tiny.weights import (
    SHIPPED,
    ModelShape,
    ModelWeights,
    file_sha256,
    read_json,
)
from explorer.errors import BadRequest, ConfigurationError, ExplorerError

VERSION = "1"
"""Of the engine; changes when the same request may be answered differently."""


# What reading a body of other types than it should have runs into, in whatever place.
_ODD = (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError)


def _not_taken(problem: Exception) -> BadRequest:
    return BadRequest(f"the request has a value of a kind that is not taken: {problem}")


@dataclass(frozen=True, slots=True)
class TinyOptions:
    """How to run a model. Lengths are in tokens.

    `max_model_len` of None is the model's own context; `default_max_tokens` bounds replies to
    bodies that name no limit. `weights` of None are those of the folder.
    """

    folder: Path = SHIPPED
    model: str = "tiny"
    max_batch: int = 8
    max_model_len: int | None = None
    default_max_tokens: int = 1024
    chunk_tokens: int = 256
    pool_tokens: int = 49_152
    logprobs_mode: LogprobsMode = LogprobsMode.PROCESSED
    weight_version: str = "default"
    weights: Path | None = None

    def as_json(self) -> str:
        """The options as one text, for the child's command line."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return orjson.dumps(fields, default=str).decode()

    @classmethod
    def from_json(cls, text: str) -> TinyOptions:
        """The reverse of `as_json`."""
        fields = orjson.loads(text)
        fields["folder"] = Path(fields["folder"])
        fields["weights"] = None if fields["weights"] is None else Path(fields["weights"])
        fields["logprobs_mode"] = LogprobsMode(fields["logprobs_mode"])
        return cls(**fields)


def fingerprint(weights: Path) -> str:
    """Names engine version and weights. Raises ConfigurationError."""
    return f"tiny-{VERSION}-{file_sha256(weights)[:8]}"


def read_facts(options: TinyOptions) -> EngineFacts:
    """What a model folder says. Raises ConfigurationError."""
    folder = options.folder
    own = ModelShape.read(folder).max_positions
    return EngineFacts(
        name="tiny",
        version=VERSION,
        model=options.model,
        max_model_len=min(own, options.max_model_len or own),
        tokenizer_sha256=file_sha256(folder / "tokenizer.json"),
        chat_template_sha256=file_sha256(folder / "chat_template.jinja"),
        fingerprint=fingerprint(options.weights or folder / "model.safetensors"),
        certifiable=True,
    )


class PromptMaker:
    """Bodies to prompt ids, as this model is given them."""

    def __init__(self, folder: Path) -> None:
        """Load tokenizer and template. Raises ConfigurationError."""
        self.tokenizer = ByteTokenizer(folder)
        self.template = ChatTemplate.read(folder)

    def text(self, body: Mapping[str, Any]) -> str:
        """The rendered prompt, or a plain prompt as it is. Raises BadRequest."""
        return str(body["prompt"]) if is_prompt(body) else self.template.render(body)

    def encode(self, text: str, body: Mapping[str, Any]) -> tuple[int, ...]:
        """The ids of the prompt's text."""
        return tuple(self.tokenizer.encode(text))

    def ids(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """The prompt's ids. Raises BadRequest."""
        given = given_ids(body, len(self.tokenizer.pieces)) if is_prompt(body) else None
        return self.encode(self.text(body), body) if given is None else given


def load_parts(options: TinyOptions) -> Parts:
    """A model folder for the network in NumPy. Raises ConfigurationError."""
    folder = options.folder
    prompts = PromptMaker(folder)
    if options.weights is None:
        weights = ModelWeights.read(folder)
    else:
        weights = ModelWeights.read_like(folder, options.weights)
    defaults = read_json(folder / "generation_config.json")
    ends = defaults.get("eos_token_id")
    return Parts(
        network=Decoder(weights),
        prompts=prompts,
        vocab_size=weights.shape.vocab_size,
        max_positions=weights.shape.max_positions,
        end_ids=(ends,) if isinstance(ends, int) else tuple(ends or ()),
        defaults=defaults,
        facts=read_facts(options),
        always_thinks=True,
        reload=lambda path: Decoder(ModelWeights.read_like(folder, path)),
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request is answered with."""

    name: str
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class _Open:
    request: ChatRequest
    request_id: str
    trail: TextTrail
    prompt_text: str | None
    created_s: int


class TinyRuntime:
    """Serves one model. `submit` and `cancel` at any time, `step` while `busy`."""

    def __init__(self, options: TinyOptions, parts: Parts | None = None) -> None:
        """Join `parts`, or else load those of the folder. Raises ConfigurationError."""
        self.options = options
        self._parts = parts = parts or load_parts(options)
        self.prompts = parts.prompts
        self.max_model_len = min(
            options.max_model_len or parts.max_positions, parts.max_positions
        )
        self.scheduler: Scheduler[Any] = Scheduler(
            parts.network,
            max_batch=options.max_batch,
            chunk_tokens=options.chunk_tokens,
            pool_tokens=options.pool_tokens,
            mode=options.logprobs_mode,
            label=options.weight_version,
        )
        self._writer = ReplyWriter(
            parts.prompts.tokenizer,
            options.model,
            parts.facts.fingerprint or "",
            parts.always_thinks,
        )
        self._open: dict[str, _Open] = {}

    @property
    def busy(self) -> bool:
        return self.scheduler.busy

    def submit(self, name: str, request_id: str, body: Mapping[str, Any]) -> Answer | None:
        """Start a generation; gives the answer at once when the body is refused."""
        try:
            self._start(name, request_id, body)
        except ExplorerError as problem:
            return Answer(name, *write_error(problem))
        except _ODD as problem:
            return Answer(name, *write_error(_not_taken(problem)))
        return None

    def cancel(self, name: str) -> None:
        """Forget a request; it gets no answer."""
        self._open.pop(name, None)
        self.scheduler.cancel(name)

    def facts(self, name: str) -> Answer:
        """What the model says about itself."""
        return Answer(name, 200, orjson.dumps(self._parts.facts))

    def pieces(self, name: str) -> Answer:
        """The vocabulary as [id, bytes in hexadecimal, special]."""
        return Answer(
            name,
            200,
            orjson.dumps(
                [
                    (piece.token_id, piece.raw.hex(), piece.special)
                    for piece in self.prompts.tokenizer.pieces
                ]
            ),
        )

    def tokenize(self, name: str, body: Mapping[str, Any]) -> Answer:
        """The prompt ids of a body."""
        try:
            return Answer(name, 200, orjson.dumps(self.prompts.ids(body)))
        except ExplorerError as problem:
            return Answer(name, *write_error(problem))
        except _ODD as problem:
            return Answer(name, *write_error(_not_taken(problem)))

    def load_weights(self, name: str, path: str, label: str) -> Answer:
        """Go on with the weights of another file; a file that does not fit changes nothing."""
        try:
            if self._parts.reload is None:
                raise BadRequest("this engine takes no other weights while it runs")
            network, made = self._parts.reload(Path(path)), fingerprint(Path(path))
        except ConfigurationError as problem:
            return Answer(name, *write_error(BadRequest(problem.message)))
        except ExplorerError as problem:
            return Answer(name, *write_error(problem))
        self.scheduler.change(network, label)
        self._writer.fingerprint = made
        facts = replace(self._parts.facts, fingerprint=made)
        self._parts = replace(self._parts, network=network, facts=facts)
        return Answer(name, 200, orjson.dumps({"fingerprint": made}))

    def step(self) -> list[Answer]:
        """Advance all requests by one token; gives the answers that are complete."""
        return [self._answer(finished) for finished in self.scheduler.step()]

    def _start(self, name: str, request_id: str, body: Mapping[str, Any]) -> None:
        parts = self._parts
        request = read_request(body, self.options.model, parts.vocab_size, parts.defaults)
        text = self.prompts.text(body) if request.prompt_ids is None else None
        prompt = request.prompt_ids if text is None else self.prompts.encode(text, body)
        prompt = prompt or ()
        if request.prompt_logprobs is not None and not isinstance(parts.network, Scorer):
            raise refusal(
                "prompt_logprobs",
                request.prompt_logprobs,
                "this engine does not support prompt_logprobs",
            )
        room = self.max_model_len - len(prompt)
        if room < 1 or not prompt:
            limit = self.max_model_len
            raise refusal(
                "input_tokens",
                len(prompt),
                # Harnesses look for "maximum context length" to tell this error.
                f"the maximum context length is {limit} tokens and the prompt has "
                f"{len(prompt)}: there is no room for a reply; shorten the prompt",
            )
        trail = TextTrail(
            self.prompts.tokenizer,
            request.stop,
            include_stop=request.flag("include_stop_str_in_output"),
            min_tokens=request.parameters.min_tokens,
            keep_special=not request.flag("skip_special_tokens", True),
        )
        self.scheduler.add(
            Job(
                name=name,
                prompt=prompt,
                parameters=request.parameters,
                end_ids=parts.end_ids,
                max_tokens=min(room, request.max_tokens or self.options.default_max_tokens),
                ignore_end=request.ignore_eos,
                stop_ids=request.stop_token_ids,
                stop_rule=trail,
                prompt_logprobs=request.prompt_logprobs,
            )
        )
        self._open[name] = _Open(request, request_id, trail, text, int(time.time()))

    def _answer(self, finished: Finished) -> Answer:
        name = finished.job.name
        done = self._open.pop(name)
        body = self._writer.write(
            Generation(
                done.request_id,
                done.request,
                finished,
                done.trail,
                done.prompt_text,
                done.created_s,
            )
        )
        return Answer(name, 200, body)
