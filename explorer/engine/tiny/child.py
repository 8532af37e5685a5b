"""The child process: reads requests on standard input, writes replies on standard output.

    python -m explorer.engine.tiny.child OPTIONS_JSON

It ends when its input closes, so none is left behind when the parent is killed. Messages in:
`{"op": "generate", "name", "request_id", "body"}`, `{"op": "cancel", "name"}`, questions about
the model: `{"op": "facts", "name"}`, `pieces`, and `tokenize` with a body, and
`{"op": "load_weights", "name", "path", "label"}`. Messages out: `{"op": "ready"}` or
`{"op": "failed", "message"}` first, then `{"op": "reply", "name", "status", "body"}` with the
body as text.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from explorer.engine.tiny.frames import BrokenFrame, pack, read_frame
from explorer.engine.tiny.runtime import Answer, TinyOptions, TinyRuntime
from explorer.errors import ConfigurationError

Inbox = queue.SimpleQueue[dict[str, Any] | None]


def listen(stream: BinaryIO, inbox: Inbox) -> None:
    """Move messages into the inbox until the stream ends; then put None."""
    try:
        while (message := read_frame(stream)) is not None:
            inbox.put(message)
    except (BrokenFrame, ValueError):
        pass  # the parent died in the middle of a message: the same as an end
    inbox.put(None)


def serve(runtime: TinyRuntime, inbox: Inbox, out: BinaryIO) -> None:
    """Answer until the input ends. Messages are taken in between two steps."""
    while True:
        while not inbox.empty() or not runtime.busy:
            message = inbox.get()
            if message is None:
                return
            answer = handle(runtime, message)
            if answer is not None:
                send(out, answer)
        for answer in runtime.step():
            send(out, answer)


def handle(runtime: TinyRuntime, message: dict[str, Any]) -> Answer | None:
    """Act on one message; gives the answer if there is one already."""
    name = message["name"]
    match message["op"]:
        case "cancel":
            runtime.cancel(name)
            return None
        case "facts":
            return runtime.facts(name)
        case "pieces":
            return runtime.pieces(name)
        case "tokenize":
            return runtime.tokenize(name, message["body"])
        case "load_weights":
            return runtime.load_weights(name, message["path"], message["label"])
    return runtime.submit(name, message["request_id"], message["body"])


def send(out: BinaryIO, answer: Answer) -> None:
    """Write one reply."""
    out.write(
        pack(
            {
                "op": "reply",
                "name": answer.name,
                "status": answer.status,
                "body": answer.body.decode(),
            }
        )
    )
    out.flush()


def main(load: Callable[[TinyOptions], TinyRuntime] = TinyRuntime) -> None:
    """Serve what `load` makes of the options, until the input ends."""
    out = sys.stdout.buffer
    # Ctrl-C reaches everything at the terminal; this process ends with its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing else may write where the messages go.
    sys.stdout = sys.stderr
    try:
        runtime = load(TinyOptions.from_json(sys.argv[1]))
    except ConfigurationError as problem:
        out.write(pack({"op": "failed", "message": problem.message}))
        out.flush()
        return
    out.write(pack({"op": "ready"}))
    out.flush()
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=listen, args=(sys.stdin.buffer, inbox), daemon=True).start()
    try:
        serve(runtime, inbox, out)
    except BrokenPipeError:
        os._exit(0)  # the parent is gone; flushing at exit would only fail again


if __name__ == "__main__":
    main()
