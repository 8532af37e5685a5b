"""Every adapter by name.

Owns: the list, and what is said about a name that is not on it.
Must not know: what adapters give.
"""

from __future__ import annotations

from collections.abc import Iterable

from explorer.errors import InvalidValue
from explorer.export.adapters.atif import Atif
from explorer.export.adapters.calls_jsonl import CallsJsonl
from explorer.export.adapters.custody import Custody
from explorer.export.adapters.dpo import Dpo
from explorer.export.adapters.grpo import Grpo
from explorer.export.adapters.sessions import Sessions
from explorer.export.adapters.sft import Sft
from explorer.export.adapters.summary import Summary
from explorer.export.adapters.training_traces import TrainingTraces
from explorer.export.adapters.verifiers import Verifiers
from explorer.export.dataset.adapter import Adapter

_KINDS: tuple[type[Adapter], ...] = (
    *(TrainingTraces, Sft, Grpo, Dpo, CallsJsonl, Verifiers, Atif, Sessions),
    *(Custody, Summary),
)
ADAPTERS: dict[str, type[Adapter]] = {kind.name: kind for kind in _KINDS}


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
