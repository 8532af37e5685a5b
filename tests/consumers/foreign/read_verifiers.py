"""Run by an environment that has verifiers: what it reads, as one line of JSON."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path


def main(file: str) -> None:
    from verifiers.v1.trace import WireTrace
    from verifiers.v1.utils.trace_store import read_episodes

    folder = Path(tempfile.mkdtemp())
    shutil.copy(file, folder / "traces.jsonl")
    traces = []
    for episode in read_episodes(folder, WireTrace):
        (trace,) = episode.traces
        traces.append((episode, trace))
    trained = 0
    for _, trace in traces:
        for node in trace.nodes:
            assert len(node.token_ids) == len(node.mask)
            assert len(node.logprobs) == sum(node.mask)
            trained += sum(node.mask)
        for branch in trace.branches:
            sizes = (branch.token_ids, branch.sampled_mask, branch.logprobs)
            assert len({len(each) for each in sizes}) == 1
    rewards = [
        None if reward is None else reward.score
        for _, trace in traces
        for reward in trace.rewards.values()
    ]
    told = {
        "ids": [trace.id for _, trace in traces],
        "trained": trained,
        "trainable": sum(trace.agent.trainable for _, trace in traces),
        "rewards": rewards,
        "groups": [episode.group.id if episode.group else None for episode, _ in traces],
        "paths": {
            trace.id: [branch.token_ids for branch in trace.branches] for _, trace in traces
        },
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
