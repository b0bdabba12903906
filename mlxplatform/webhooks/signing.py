"""Signatures after the Standard Webhooks rules, as the OpenAI SDK checks them. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac


def headers(secret: str, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers a receiver verifies with the secret."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{event_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": event_id, "webhook-timestamp": str(timestamp), "webhook-signature": f"v1,{signature}"}
