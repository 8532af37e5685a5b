"""The rollout page at 100,000 tokens, against the same tokens as plain spans.

    python -m benchmarks.page [--tokens 100000] [--repeat 5]

Prints sizes, time to ready, and the time of a metric switch, as medians and as ratios
of the two pages measured in turns in one run: ratios stay when the machine is busy.

Budget: gzip of our HTML at most 350 KB; ready at most 0.5 and the switch at most 0.15
of the plain page; an address that names the last token shows exactly that one. "Ready" is
the second frame after the load event, server time included; the plain page is served from
memory, so it pays nothing for rendering.
"""

from __future__ import annotations

import argparse
import dis
import email.message
import gzip
import html
import inspect
import json
import re
import statistics
import tempfile
import textwrap
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Response
from playwright.sync_api import Browser, Page, sync_playwright

from explorer.records import CallId, TokenizerId, VocabularyEntry
from explorer.trace.decode import pieces
from tests.browser.chromium import launch
from tests.web.seeds import Maker, maker, write
from tests.web.serving import Served, serving

BUDGET_GZIP = 350 * 1024
BUDGET_READY = 0.5
BUDGET_SWITCH = 0.15
TOKENIZER = TokenizerId("benchmark")
_PIECE = re.compile(r" ?[A-Za-z_]{1,12}|\n+| {1,8}|\d|[^\w\s]|.", re.DOTALL)
_SIX_LINES = "The lock 🦊 is taken twice, 漢字 — naïve.\n"

READY = """
addEventListener("load", () => requestAnimationFrame(() => requestAnimationFrame(() => {
  window.benchReady = performance.now();
})));
"""
SWITCH_PLAIN = """() => new Promise((done) => {
  const start = performance.now();
  document.documentElement.dataset.m = "mask";
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
})"""
SWITCH_OURS = """() => new Promise((done) => {
  const start = performance.now();
  const field = document.querySelector("select[name=m]");
  field.value = "mask";
  field.dispatchEvent(new Event("change", {bubbles: true}));
  const seen = () => [...document.querySelectorAll(".k")].filter((block) => {
    const box = block.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  });
  const wait = () => seen().every((block) => block.dataset.m === "mask")
    ? requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)))
    : setTimeout(wait, 1);
  wait();
})"""


LAST = """() => {
  const found = document.querySelector(".k .c");
  const all = document.querySelectorAll(".k > i");
  if (!found || found !== all[all.length - 1]) return false;
  const box = found.getBoundingClientRect();
  return box.top >= 0 && box.bottom <= innerHeight;
}"""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Real text as tokens of a byte-level vocabulary made from it."""

    ids: list[int]
    entries: tuple[VocabularyEntry, ...]

    def table(self) -> dict[int, tuple[bytes, bool]]:
        """Bytes and special flag by id."""
        return {entry.token_id: (entry.raw, entry.special) for entry in self.entries}


def corpus(tokens: int) -> Corpus:
    """Source text of the standard library, with some text outside ASCII in it."""
    sources = [argparse, dis, email.message, inspect, json, re, textwrap, statistics, tempfile]
    sources += [urllib.request, gzip, html]
    lines = "\n".join(inspect.getsource(module) for module in sources).splitlines(True)
    text = "".join(
        line + (_SIX_LINES if number % 40 == 0 else "") for number, line in enumerate(lines)
    )
    found = _PIECE.findall(text)
    known = [raw for raw, _ in Counter(found).most_common(30_000) if raw.isascii()]
    entries = [VocabularyEntry(TOKENIZER, value, bytes([value]), False) for value in range(256)]
    entries += [
        VocabularyEntry(TOKENIZER, 256 + number, raw.encode(), False)
        for number, raw in enumerate(known)
    ]
    by_text = {raw: 256 + number for number, raw in enumerate(known)}
    ids: list[int] = []
    for raw in found:
        ids += [by_text[raw]] if raw in by_text else list(raw.encode())
    while len(ids) < tokens:
        ids += ids
    return Corpus(ids[:tokens], tuple(entries))


def rollout(text: Corpus, turns: int = 68, sampled: float = 0.43) -> Maker:
    """The corpus as one rollout; every fifth turn is sampled and masked in part."""
    made = maker("benchmark", run="benchmark", task="page")
    object.__setattr__(made.rollout, "tokenizer_id", TOKENIZER)
    per_turn = len(text.ids) // turns
    cut = int(per_turn * (1 - sampled))
    parent: CallId | None = None
    for turn in range(turns):
        own = text.ids[turn * per_turn : (turn + 1) * per_turn]
        before = len(made.fulls[parent]) if parent else 0
        logprobs = made.logprobs(len(own) - cut)
        if turn % 5 == 4:
            logprobs[10:200] = -9999.0
        call_id = made.call(
            "",
            parent=parent,
            with_bodies=False,
            prefix_len=before,
            prompt_len=before + cut,
            completion_len=len(own) - cut,
            prompt_delta=np.array(own[:cut], dtype=np.int32),
            completion=np.array(own[cut:], dtype=np.int32),
            logprobs=logprobs,
            chain_hash=None,
            usage_prompt=None,
            usage_completion=None,
        )
        made.fulls[call_id] = [*(made.fulls[parent] if parent else []), *own]
        parent = call_id
    return made


def plain_page(text: Corpus, made: Maker) -> bytes:
    """The same tokens as spans with classes for three metrics, one attribute switches."""
    codes = np.zeros((3, len(text.ids)), dtype=int)
    at = 0
    for call in made.calls:
        assert call.prompt_delta is not None
        assert call.completion is not None
        assert call.logprobs is not None
        at += call.prompt_delta.size
        here = slice(at, at + call.completion.size)
        bins = np.digitize(-call.logprobs, (0.01, 0.05, 0.2, 0.5, 1, 2, 4, 8))
        codes[0, here], codes[1, here], codes[2, here] = bins, bins // 2, 1
        at += call.completion.size
    rules = "".join(
        f'[data-m="{name}"] .{letter}{step}{{background:hsl(30 70% {95 - 6 * step}%)}}'
        for letter, name in zip("lrm", ("logprob", "rank", "mask"), strict=True)
        for step in range(1, 9)
    )
    spans = [
        f'<span class="l{first} r{second} m{third}">{html.escape(piece.text)}</span>'
        for piece, first, second, third in zip(
            pieces(text.ids, text.table()), *codes.tolist(), strict=False
        )
    ]
    return (
        f'<!doctype html><html lang=en data-m="logprob"><title>plain</title><style>{rules}'
        "pre{font:13px/20px monospace;white-space:pre-wrap}</style><pre>"
        f"{''.join(spans)}</pre>"
    ).encode()


@dataclass(slots=True)
class Timing:
    """Milliseconds of one page."""

    ready: list[float]
    switch: list[float]


def measure(browser: Browser, url: str, script: str, into: Timing) -> None:
    """One fresh visit."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page: Page = context.new_page()
    page.add_init_script(READY)
    page.goto(url, wait_until="load", timeout=120_000)
    page.wait_for_function("window.benchReady", timeout=120_000)
    into.ready.append(float(page.evaluate("window.benchReady")))
    page.wait_for_timeout(300)
    into.switch.append(float(page.evaluate(script)))
    context.close()


def jumps_to_the_last(browser: Browser, url: str, tokens: int) -> bool:
    """Whether an address with the last token shows that token, and no other as chosen."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{url}#t{tokens - 1}", wait_until="load", timeout=120_000)
    for _ in range(100):
        if page.evaluate(LAST):
            break
        page.wait_for_timeout(50)
    exact = bool(page.evaluate(LAST)) and page.url.endswith(f"#t{tokens - 1}")
    page.close()
    return exact


def serve_plain(app: FastAPI, body: bytes) -> None:
    """Adds `/plain`, compressed beforehand."""
    packed = gzip.compress(body, 6)

    @app.get("/plain")
    async def plain() -> Response:
        return Response(packed, media_type="text/html", headers={"Content-Encoding": "gzip"})

    # The benchmark's own page has its style inside; nothing else is served with it.
    app.router.routes.insert(0, app.router.routes.pop())


def run(tokens: int, repeat: int, report: Callable[[str], Any] = print) -> bool:
    """Measure and print; True when every budget holds."""
    text = corpus(tokens)
    made = rollout(text)
    body = plain_page(text, made)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), csp=False) as served:
        return _run(served, text, made, body, repeat, report)


def _run(
    served: Served,
    text: Corpus,
    made: Maker,
    body: bytes,
    repeat: int,
    report: Callable[[str], Any],
) -> bool:
    served.tables[TOKENIZER] = text.table()
    served.call(lambda: write(served.store, made, 1.0, True, close=True))
    serve_plain(served.app, body)
    ours_url = f"{served.url}/rollouts/{made.rollout.rollout_id}/tokens"
    request = urllib.request.Request(ours_url, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request) as reply:
        wire = reply.read()
    plain, ours = Timing([], []), Timing([], [])
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for _ in range(repeat):
            measure(browser, f"{served.url}/plain", SWITCH_PLAIN, plain)
            measure(browser, ours_url, SWITCH_OURS, ours)
        total = len(made.fulls[made.calls[-1].call_id])
        exact = jumps_to_the_last(browser, ours_url, total)
        browser.close()
    report(f"{'last token':14}{'':>14}{'exact' if exact else 'MISSED':>14}")
    return _print(body, wire, plain, ours, report) and exact


def _print(
    body: bytes, wire: bytes, plain: Timing, ours: Timing, report: Callable[[str], Any]
) -> bool:
    middle = statistics.median
    ready = middle(ours.ready) / middle(plain.ready)
    switch = middle(ours.switch) / middle(plain.switch)
    packed = len(gzip.compress(body, 6))
    report(f"{'':14}{'plain spans':>14}{'ours':>14}{'ratio':>9}{'budget':>9}")
    report(f"{'HTML':14}{len(body):>14,}{len(gzip.decompress(wire)):>14,}")
    report(
        f"{'gzip':14}{packed:>14,}{len(wire):>14,}{len(wire) / packed:>9.2f}{BUDGET_GZIP:>9,}"
    )
    report(
        f"{'ready ms':14}{middle(plain.ready):>14.0f}{middle(ours.ready):>14.0f}"
        f"{ready:>9.2f}{BUDGET_READY:>9}"
    )
    report(
        f"{'switch ms':14}{middle(plain.switch):>14.0f}{middle(ours.switch):>14.0f}"
        f"{switch:>9.2f}{BUDGET_SWITCH:>9}"
    )
    return len(wire) <= BUDGET_GZIP and ready <= BUDGET_READY and switch <= BUDGET_SWITCH


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    raise SystemExit(0 if run(given.tokens, given.repeat) else 1)


if __name__ == "__main__":
    main()
