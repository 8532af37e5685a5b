"""The names that we need of the real `openenv`, and what to do where it is missing.

Owns: the one place that imports `openenv.core.harness`.
Must not know: how they are used.
"""

from __future__ import annotations

try:
    from openenv.core.harness import (
        RESERVED_TOOL_NAMES,
        CLIHarnessAdapter,
        HarnessRolloutResult,
        HarnessRunLimits,
        ResourceSession,
        ResourceSessionFactory,
        ToolResult,
        TrainingTrace,
        TrainingTurn,
        VerifyResult,
    )
except ImportError as error:
    raise ImportError(
        "explorer.integrations.openenv needs OpenEnv 0.10: "
        "pip install 'rollout-explorer[openenv]'"
    ) from error

__all__ = [
    "RESERVED_TOOL_NAMES",
    "CLIHarnessAdapter",
    "HarnessRolloutResult",
    "HarnessRunLimits",
    "ResourceSession",
    "ResourceSessionFactory",
    "ToolResult",
    "TrainingTrace",
    "TrainingTurn",
    "VerifyResult",
]
