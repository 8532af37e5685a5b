"""The JSON text of every call's prompt ids, written from what is already written.

Owns: `RowTexts`. A child's prompt begins with its parent's whole sequence, so in depth-first
order one buffer holds the path, and each token is turned into digits once however often
the format repeats it.
Must not know: masks, documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import orjson

from explorer.records import CallId, IdArray
from explorer.trace.tree import Node, Tree


class RowText(NamedTuple):
    """A node with its prompt and its sampled ids, each as the inside of a JSON list."""

    node: Node
    prompt: bytes
    completion: bytes


def ids_text(ids: IdArray) -> bytes:
    """``1,2,3``: the inside of a JSON list of ids."""
    whole = np.ascontiguousarray(ids, dtype=np.int32)
    return orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def zeros_text(count: int) -> bytes:
    """``0,0,0``: so many masked positions."""
    return b"0," * (count - 1) + b"0" if count else b""


def row_texts(tree: Tree) -> Iterator[RowText]:
    """Every node that has ids, depth first; memory is one row.

    Raises:
        RecordInconsistent: stored parts of a call do not fit.
    """
    path = bytearray()
    ends: dict[CallId, tuple[int, int]] = {}
    for node in tree.walk():
        if not node.has_ids:
            continue
        parent = None if node.parent_id is None else ends.get(node.parent_id)
        text_end, tokens = (0, 0) if parent is None else parent
        del path[text_end:]
        length = node.prompt_len + node.completion_len
        fresh = tree.sequences.slice(node.call_id, tokens, length)
        _append(path, ids_text(fresh[: node.prompt_len - tokens]))
        prompt = bytes(path)
        completion = ids_text(fresh[node.prompt_len - tokens :])
        _append(path, completion)
        ends[node.call_id] = (len(path), length)
        yield RowText(node, prompt, completion)


def _append(path: bytearray, text: bytes) -> None:
    if text:
        path += b"," + text if path else text
