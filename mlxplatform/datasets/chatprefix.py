"""How a model's chat template opens a user turn, and what ends one. Rendered elsewhere, cached per template."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mlxplatform.datasets.chatrender import rendered
from mlxplatform.library import local_models

#: Stands for the user's words while the template is rendered.
_MARK = "\u2063the user's words\u2063"


@dataclass(frozen=True)
class UserTurn:
    """``prefix`` up to the user's first word; ``stop`` strings that end the turn."""

    prefix: str
    stop: tuple[str, ...]


CHATML = UserTurn("<|im_start|>user\n", ("<|im_end|>",))


def user_turn(model: str, system: str = "") -> UserTurn:
    """The opening of a user turn for ``model``; ChatML's when its template is not at hand or cannot be rendered."""
    found = local_models.find(model)
    return _rendered(found.chat_template, system) if found is not None and found.chat_template else _chatml(system)


def _chatml(system: str) -> UserTurn:
    before = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return UserTurn(before + CHATML.prefix, CHATML.stop)


@lru_cache(maxsize=64)
def _rendered(template: str, system: str) -> UserTurn:
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": _MARK})
    text = rendered(template, messages)
    if text is None:
        return _chatml(system)
    prefix, mark, after = text.partition(_MARK)
    ending = after.strip().split("\n")[0].strip()
    return UserTurn(prefix, (ending,) if ending else CHATML.stop) if mark else _chatml(system)
