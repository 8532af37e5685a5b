"""The threads that build pages and searches; nothing else runs in them.

Owns: how many there are. Must not know: what they build.

A page may take seconds, and a search waits for verdicts, which are made in the event
loop's own threads. Were both the same threads, a handful of searches would hold them all
while waiting for one, and recording calls would stop with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 4
_POOL = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="pages")
Result = TypeVar("Result")


async def in_page_thread(work: Callable[[], Result]) -> Result:
    """What `work` gives, made while the event loop goes on."""
    return await asyncio.get_running_loop().run_in_executor(_POOL, work)
