"""Tools for models whose template has no words for them: the Hermes layout, written into ordinary turns.

Tools are listed in the system turn, calls are JSON between ``<tool_call>`` marks, answers come back as a
user turn between ``<tool_response>`` marks. The text layer reads the same layout under the name "hermes".
"""

from __future__ import annotations

import json
from typing import Any

from mlxplatform.inference.contract import Message, ToolCall
from workers.engine import sound_text
from workers.prepare.parts import joined, seen_content

_INTRODUCTION = (
    "You can call functions to help with the user's request. Each line between <tools> and </tools> describes one of them:\n"
    "<tools>\n{tools}\n</tools>\n\n"
    "To call a function, write a JSON object with its name and its arguments between <tool_call> and </tool_call>:\n"
    '<tool_call>\n{{"name": "<function-name>", "arguments": {{<arguments>}}}}\n</tool_call>'
)


def introduction(schemas: list[dict[str, Any]]) -> str:
    return _INTRODUCTION.format(tools="\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas))


def written_call(call: ToolCall) -> str:
    try:
        arguments = sound_text.loads(call.arguments) if call.arguments.strip() else {}
    except ValueError:
        arguments = call.arguments
    return f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def turns(messages: list[Message], schemas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All turns in plain roles system, user, assistant."""
    out: list[dict[str, Any]] = []
    pending = introduction(schemas) if schemas else ""
    if pending and (not messages or messages[0].role != "system"):
        out.append({"role": "system", "content": pending})
        pending = ""
    answering = False
    for message in messages:
        content = seen_content(message)
        if message.role == "tool":
            answer = joined(joined("<tool_response>\n", content, ""), "\n</tool_response>", "")
            if answering:
                out[-1]["content"] = joined(out[-1]["content"], answer, "\n")
            else:
                out.append({"role": "user", "content": answer})
            answering = True
            continue
        answering = False
        if message.role == "system" and pending:
            content, pending = joined(content, pending), ""
        calls = "\n".join(written_call(call) for call in message.tool_calls or [])
        turn: dict[str, Any] = {"role": message.role, "content": joined(content, calls, "\n")}
        if message.reasoning:
            turn["reasoning_content"] = message.reasoning
        out.append(turn)
    return out
