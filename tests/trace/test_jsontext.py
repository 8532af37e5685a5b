"""JSON of exports: every strict reader takes it, whatever a caller put in."""

from __future__ import annotations

from typing import Any

import orjson

from explorer.trace.jsontext import dump


def test_metadata_nested_beyond_the_writer_is_cut_and_breaks_no_export() -> None:
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"a": deep}
    read = orjson.loads(dump({"metadata": deep, "text": "kept"}))
    assert read["text"] == "kept"
    assert b"nested too deeply" in dump({"metadata": deep})


def test_what_json_cannot_hold_is_spelled_out() -> None:
    read = orjson.loads(dump({"a\ud800": "\udfff", "big": 2**80}))
    assert read == {"a\\ud800": "\\udfff", "big": str(2**80)}
