"""For OpenEnv 0.10: sessions over our HTTP API, a harness adapter, sealed traces.

    factory = ExplorerSessionFactory(server, CommandAgent(["pi", "-p", "{task}"]))
    session = factory.create("fix the failing test")

Needs ``pip install 'rollout-explorer[openenv]'``. See docs/how-to/use-with-openenv.md.
"""

from explorer.integrations.attempts import Agent, Attempt, Ended, Endpoint
from explorer.integrations.blocking import ExplorerServer, TraceRefused
from explorer.integrations.command import CommandAgent, Finished
from explorer.integrations.contract import MalformedTrace
from explorer.integrations.openenv.adapter import ExplorerHarness
from explorer.integrations.openenv.harbor import HarborRun, HarborSession, HarborSessionFactory
from explorer.integrations.openenv.legacy import audit_of_result, trace_of_result
from explorer.integrations.openenv.sealed import ChangedTrace, SealedTrace, SealedTurn, seal
from explorer.integrations.openenv.session import (
    ExplorerSession,
    ExplorerSessionFactory,
    captured_session,
)

__all__ = [
    "Agent",
    "Attempt",
    "ChangedTrace",
    "CommandAgent",
    "Ended",
    "Endpoint",
    "ExplorerHarness",
    "ExplorerServer",
    "ExplorerSession",
    "ExplorerSessionFactory",
    "Finished",
    "HarborRun",
    "HarborSession",
    "HarborSessionFactory",
    "MalformedTrace",
    "SealedTrace",
    "SealedTurn",
    "TraceRefused",
    "audit_of_result",
    "captured_session",
    "seal",
    "trace_of_result",
]
