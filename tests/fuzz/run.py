"""Runs one fuzz target under atheris: coverage-guided, seeded with real traffic.

    python -m tests.fuzz.run TARGET [libFuzzer flags, such as -max_total_time=60]

Needs the extra `fuzz`. A finding is written to a file `crash-…`; add it as a test.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Fuzzes until a flag or Ctrl-C ends it."""
    try:
        import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        sys.exit(
            "atheris is not installed: pip install '.[fuzz]' (CPython 3.11 to 3.13, Linux)"
        )
    with atheris.instrument_imports(include=["explorer"]):
        from tests.fuzz.targets import TARGETS
    if not arguments or arguments[0] not in TARGETS:
        sys.exit(f"name one of: {', '.join(TARGETS)}")
    from tests.fuzz.test_targets import RECORDED

    with tempfile.TemporaryDirectory() as corpus:
        for number, data in enumerate(RECORDED):
            (Path(corpus) / f"seed-{number}").write_bytes(data)
        atheris.Setup([sys.argv[0], *arguments[1:], corpus], TARGETS[arguments[0]])
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
