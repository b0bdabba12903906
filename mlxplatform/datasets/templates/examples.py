"""Asking a model which request a text answers, by example: small models follow a pattern better than a description."""

from __future__ import annotations

from mlxplatform.datasets.templates.base import system, user
from mlxplatform.inference.contract import Message

_EXAMPLES = (
    (
        "Water boils at a lower temperature in the mountains, because the air presses on it less. At 3,000 metres it boils at "
        "about 90 degrees.",
        "Explain why water boils at a lower temperature in the mountains.",
    ),
    (
        "Dear Ms Lind, thank you for your order. The lamp is out of stock and will be sent on Monday. Yours, Jan",
        "Write a short letter to a customer whose lamp will be sent later.",
    ),
)


def request_behind(text: str) -> list[Message]:
    """The conversation to which the request is the answer."""
    turns = [system("You are given a text. You reply with the request that somebody made to get this text, and nothing else.")]
    for given, request in _EXAMPLES:
        turns += [user(f"Text:\n{given}"), Message("assistant", request)]
    return [*turns, user(f"Text:\n{text}")]
