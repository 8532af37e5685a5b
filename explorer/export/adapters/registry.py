"""Every adapter by name.

Owns: the list, and what is said about a name that is not on it.
Must not know: what adapters give.
"""

from __future__ import annotations

from collections.abc import Iterable

from explorer.errors import InvalidValue
from explorer.export.adapters.base import Adapter

ADAPTERS: dict[str, type[Adapter]] = {}


def adapters_of(names: Iterable[str]) -> list[Adapter]:
    """New adapters, in the order of the registry, each once.

    Raises:
        InvalidValue: there is no such adapter.
    """
    wanted = set(names)
    unknown = sorted(wanted - set(ADAPTERS))
    if unknown:
        raise InvalidValue(
            f"there is no format {unknown[0][:40]!r}; there are {', '.join(ADAPTERS)}"
        )
    return [kind() for name, kind in ADAPTERS.items() if name in wanted]
