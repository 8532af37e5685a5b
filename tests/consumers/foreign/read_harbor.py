"""Run by an environment that has Harbor: what it reads, as one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(folder: str) -> None:
    from harbor.models.trajectories import Trajectory

    calls: dict[str, Any] = {}
    files = sorted(Path(folder).glob("*.json"))
    for file in files:
        trajectory = Trajectory.model_validate_json(file.read_bytes())
        assert trajectory.schema_version == "ATIF-v1.8"
        for step in trajectory.steps:
            if step.llm_call_count and not step.is_copied_context:
                name = (step.extra or {})["call_id"]
                assert name not in calls
                calls[name] = step.metrics.completion_token_ids if step.metrics else None
    print(json.dumps({"files": len(files), "calls": calls}))


if __name__ == "__main__":
    main(sys.argv[1])
