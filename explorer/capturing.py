"""Wiring of the capture room: the weight fence and the proxy around one engine.

Owns: which part is given which. Must not know: rules, pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer.capture.desk import Desk
from explorer.capture.driver import Surroundings
from explorer.capture.fence_desk import FenceDesk
from explorer.capture.ids import now_us
from explorer.capture.proxy import CaptureProxy, ProxyOptions
from explorer.certifier import Certifier
from explorer.engine.fence import make_control
from explorer.engine.protocol import Engine
from explorer.external_custody import ExternalCustody
from explorer.settings import Settings
from explorer.store.interface import Store
from explorer.vocabularies import Vocabularies


@dataclass(frozen=True, slots=True)
class Capturing:
    """What captures: the fence of one engine, and the proxy behind it."""

    fences: FenceDesk
    proxy: CaptureProxy

    @classmethod
    def of(
        cls,
        settings: Settings,
        desk: Desk,
        engine: Engine,
        store: Store,
        certifier: Certifier,
        vocabularies: Vocabularies,
        custody: ExternalCustody | None,
    ) -> Capturing:
        """Both, not started yet."""
        fences = FenceDesk(
            store,
            make_control(engine, settings.fence_engine_control),
            settings.fence_wait_s,
            now_us,
            certifier.weights_changed,
        )
        certifier.steady = lambda: fences.fence.steady_epoch(now_us())
        around = Surroundings(
            desk,
            engine,
            store,
            certifier,
            fences,
            gatekeeper=custody.gatekeeper if custody else None,
        )
        options = proxy_options(settings)
        return cls(fences, CaptureProxy(around, options, certifier, vocabularies))


def proxy_options(settings: Settings) -> ProxyOptions:
    return ProxyOptions(
        max_body_bytes=settings.max_body_bytes,
        max_in_flight=settings.max_in_flight,
        engine_timeout_s=settings.engine_timeout_s,
        hold_s=settings.status_hold_s,
        keepalive_s=settings.keepalive_s,
        top_logprobs=settings.top_logprobs,
        body_timeout_s=settings.body_timeout_s,
        one_system=settings.one_system,
        unary_keepalive=settings.unary_keepalive,
        harmless=frozenset(settings.harmless_fields),
    )
