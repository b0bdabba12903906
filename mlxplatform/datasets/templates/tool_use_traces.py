"""Conversations in which the model calls a tool, gets a prepared result and answers from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlxplatform.datasets.inputs import bad
from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, lines, system, user
from mlxplatform.inference.contract import Message, Tool

ANSWER_TOKENS = 512
#: Which tool to call, and with what, is no matter of invention.
CALL_TEMPERATURE = 0.2
#: What an answer holds that only goes on with the transcript of the tools.
MARKUP = ("<tool_response>", "<tool_call>")


def parse_tools(raw: Any) -> list[Tool]:
    """OpenAI tool objects, or bare functions.

    Raises:
        ValueError: a sentence about the first one that is neither.
    """
    if not isinstance(raw, list) or not raw:
        raise ValueError("tools_json must be a JSON array with at least one tool")
    tools = []
    for index, entry in enumerate(raw):
        function = entry.get("function", entry) if isinstance(entry, dict) else {}
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise ValueError(f"tools_json[{index}] has no function name")
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise ValueError(f"tools_json[{index}].parameters must be an object")
        tools.append(Tool(name, function.get("description"), parameters))
    return tools


def check_inputs(inputs: Inputs, project: str) -> None:
    try:
        parse_tools(inputs["tools_json"])
    except ValueError as error:
        raise bad("inputs.tools_json", str(error)) from None


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    scenarios, results = lines(inputs["scenarios"]), lines(inputs["mock_results"])
    if len(scenarios) != len(results):
        yield Drop(
            "count_mismatch", f"{len(scenarios)} scenarios but {len(results)} results; each scenario needs one line of result"
        )
        return
    for number, pair in enumerate(zip(scenarios, results, strict=True), 1):
        yield Source(str(number), pair)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    scenario, result = source.data
    tools = parse_tools(inputs["tools_json"])
    # Every scenario comes with a result, so every one is meant to need a call.
    first = await ask("call", [user(scenario)], tools=tools, tool_choice="required", temperature=CALL_TEMPERATURE)
    if not first.tool_calls:
        return [Drop("no_tool_call", first.text[:120])]
    call = first.tool_calls[0]
    answer = await ask(
        "answer",
        [
            system("Answer the user in a sentence from what the tool returned."),
            user(scenario),
            Message("assistant", None, tool_calls=[call]),
            Message("tool", result, tool_call_id=call.id, name=call.name),
        ],
        tools=tools,
        max_tokens=ANSWER_TOKENS,
    )
    if not answer.text:
        return [Drop("empty_answer", scenario[:120])]
    if any(mark in answer.text for mark in MARKUP) or answer.text.strip() == result:
        return [Drop("repeats_result", answer.text[:120])]
    function = {"name": call.name, "arguments": call.arguments}
    return [
        Draft(
            {
                "messages": [
                    {"role": "user", "content": scenario},
                    {
                        "role": "assistant",
                        "content": "",
                        "tool_calls": [{"id": call.id, "type": "function", "function": function}],
                    },
                    {"role": "tool", "content": result, "tool_call_id": call.id, "name": call.name},
                    {"role": "assistant", "content": answer.text},
                ],
                "tools": inputs["tools_json"],
            }
        )
    ]


TEMPLATE = Template(
    id="tool_use_traces",
    label="Tool use",
    description="Lets the model call one of your tools for each scenario, feeds it your result and keeps the whole exchange.",
    output_format="messages",
    fields=(
        Field("tools_json", "json", "Tools, a JSON array of functions", required=True),
        Field("scenarios", "textarea", "Scenarios, one a line", required=True),
        Field("mock_results", "textarea", "Tool results, one line for each scenario", required=True),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
    check_inputs=check_inputs,
)
