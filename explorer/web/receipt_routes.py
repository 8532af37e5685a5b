"""The receipts of a rollout, for programs.

Owns: their route and its shape. Must not know: how receipts come about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from explorer.custody.records import RolloutReceipt
from explorer.errors import NotFound, SecretsUndecided
from explorer.export.sealing import Issued
from explorer.trace.jsontext import dump
from explorer.web.api import Api, judged_or_404
from explorer.web.services import services_of

programs = APIRouter(prefix="/api/v1")


@programs.get("/rollouts/{rollout_id}/receipts")
async def get_receipts(rollout_id: str, request: Request, api: Api) -> Response:
    """Every receipt of a closed rollout, with its signature, and the manifests; no token.

    `sha256` is the digest as it was issued, `state` whether the record still gives it.
    """
    judged = await judged_or_404(api, rollout_id)
    if judged.cover is not None:
        raise SecretsUndecided("parts of this rollout are hidden from you, so are its receipts")
    sealing = services_of(request).sealing
    custody = None
    if sealing is not None:
        custody = await sealing.issue(judged.record.rollout.rollout_id)
    if custody is None:
        raise NotFound("this server issues no receipts")
    told = {
        "rollout_id": rollout_id,
        "manifests": _manifests(custody.receipts),
        "receipts": [_told(each) for each in custody.receipts],
    }
    return Response(dump(told), media_type="application/json")


def _manifests(receipts: Sequence[Issued]) -> dict[str, Any]:
    """Each manifest once, by its digest: rewards that come later do not change it."""
    found = {each.now.manifest_sha256: each.now for each in receipts if each.now is not None}
    return {
        digest: [row.to_json() for row in now.receipt.manifest] for digest, now in found.items()
    }


def _told(issued: Issued) -> dict[str, Any]:
    seal = issued.seal
    signature = None
    if seal is not None and seal.signature is not None:
        signature = {
            "algorithm": seal.algorithm,
            "key_id": seal.key_id,
            "value": seal.signature,
        }
    return {
        "number": issued.number,
        "sha256": seal.sha256 if seal is not None else issued.now and issued.now.sha256,
        "issued_us": None if seal is None else seal.time_us,
        "state": issued.state,
        "signed": issued.signed,
        "signature": signature,
        "manifest_sha256": None if issued.now is None else issued.now.manifest_sha256,
        "receipt": None if issued.now is None else _content(issued.now.receipt),
    }


def _content(receipt: RolloutReceipt) -> dict[str, Any]:
    """All of a receipt but its manifest."""
    names = [item.name for item in fields(receipt) if item.name != "manifest"]
    return {name: getattr(receipt, name) for name in names}
