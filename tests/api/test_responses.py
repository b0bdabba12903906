"""The Responses API on the real platform: events, chaining, storage, background work and resumption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from tests.api.sse import frames
from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

PATH = "/v1/responses"
QUESTION = "What is the capital of France?"
#: The tokens that end an answer, forbidden.
ENDLESS = {"logit_bias": {"0": -100, "2": -100}}
Post = Callable[..., httpx.Response]


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": QUESTION, "max_output_tokens": 16, "temperature": 0, **more}


def deltas(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def test_the_event_chain(post: Post) -> None:
    found = frames(post(PATH, ask(stream=True)).text)
    assert all(frame.event == frame.json["type"] for frame in found)
    kinds = [frame.event.removeprefix("response.") for frame in found]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    numbers = [frame.json["sequence_number"] for frame in found]
    assert numbers == sorted(set(numbers))
    final = found[-1].json["response"]
    assert final["output"][0]["content"][0]["text"]
    assert final["usage"]["total_tokens"] > 0


def test_stream_and_whole_agree(stack: Stack) -> None:
    client = stack.openai()
    whole = client.responses.create(**ask())
    events = list(client.responses.create(**ask(stream=True)))
    assert "Paris" in whole.output_text
    assert deltas(events) == whole.output_text == events[-1].response.output_text


def test_messages_need_no_type(post: Post) -> None:
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]
    assert post(PATH, ask(input=turns)).status_code == 200


def test_chaining_sees_the_whole_conversation(stack: Stack) -> None:
    client = stack.openai()
    first = client.responses.create(**ask(instructions="Be brief."))
    chained = client.responses.create(**ask(input="And Italy?", previous_response_id=first.id))
    replayed = client.responses.create(
        **ask(
            instructions="Be brief.",
            input=[
                {"role": "user", "content": QUESTION},
                {"role": "assistant", "content": first.output_text},
                {"role": "user", "content": "And Italy?"},
            ],
        )
    )
    assert chained.usage.input_tokens == replayed.usage.input_tokens
    assert chained.previous_response_id == first.id
    assert [item.type for item in client.responses.input_items.list(chained.id, order="asc")] == ["message"] * 3


def test_a_function_call_chained_and_replayed(post: Post, stack: Stack) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    turns = [{"role": "user", "content": QUESTION}, call, output]
    assert post(PATH, ask(input=turns)).status_code == 200
    orphan = post(PATH, ask(input=turns[:2]))
    assert orphan.status_code == 400
    assert "c1" in orphan.json()["error"]["message"]


def test_a_mixed_tool_list(post: Post) -> None:
    tools = [
        {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}},
        {"type": "custom", "name": "apply_patch"},
        {"type": "web_search"},
        {"type": "namespace", "name": "mcp", "tools": []},
    ]
    response = post(PATH, ask(tools=tools))
    assert response.status_code == 200
    assert "tools.web_search" in response.headers["x-mlxplatform-ignored"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [5]}, "input"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"type": "computer_call_output", "call_id": "1", "output": {}}]}, "input"),
        ({"input": [{"type": "nonsense"}]}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
        ({"tools": [{"name": "x"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"reasoning": {"effort": "extreme"}}, "reasoning.effort"),
        ({"prompt": {"id": "p"}}, "prompt"),
    ],
)
def test_bad_fields_are_named(refused: Callable[..., dict[str, Any]], change: dict[str, Any], param: str) -> None:
    body = {key: value for key, value in {**ask(), **change}.items() if value is not None}
    refused(PATH, body, 400, param)


def test_reasoning_items_are_accepted(post: Post) -> None:
    turns = [{"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "user", "content": QUESTION}]
    assert post(PATH, ask(input=turns)).status_code == 200


def test_a_reference_stands_for_the_stored_item(stack: Stack, post: Post) -> None:
    first = stack.openai().responses.create(**ask())
    turns = [{"role": "user", "content": QUESTION}, {"type": "message", "role": "assistant", "content": first.output_text}]
    more = {"role": "user", "content": "And Italy?"}
    whole = post(PATH, ask(input=[*turns, more])).json()
    for reference in ({"type": "item_reference", "id": first.output[0].id}, {"id": first.output[0].id}):
        referring = post(PATH, ask(input=[turns[0], reference, more])).json()
        assert referring["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
        kept = stack.http.get(f"{PATH}/{referring['id']}/input_items", params={"order": "asc"}).json()["data"]
        assert [item["type"] for item in kept] == ["message"] * 3


@pytest.mark.parametrize("name", ["x", "msg_" + "0" * 34, "msg_" + "g" * 34])
def test_a_reference_that_leads_nowhere(refused: Callable[..., dict[str, Any]], name: str) -> None:
    error = refused(PATH, ask(input=[{"type": "item_reference", "id": name}]), 404, "input[0].id")
    assert error["code"] == "item_not_found"


@pytest.mark.parametrize("previous", ["resp_doesnotexist", ""])
def test_an_unknown_previous_response(refused: Callable[..., dict[str, Any]], previous: str) -> None:
    error = refused(PATH, ask(previous_response_id=previous), 404, "previous_response_id")
    assert error["code"] == "response_not_found"


def test_cut_answers_are_incomplete(stack: Stack) -> None:
    client = stack.openai()
    whole = client.responses.create(**ask(max_output_tokens=1))
    assert whole.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(**ask(max_output_tokens=1, stream=True)))
    assert events[-1].type == "response.incomplete"


def test_a_stream_resumes_at_every_cut(stack: Stack) -> None:
    client = stack.openai()
    events = list(client.responses.create(**ask(stream=True, input="xyz", max_output_tokens=12)))
    response_id = events[0].response.id
    for cut, event in enumerate(events):
        rest = list(client.responses.retrieve(response_id, stream=True, starting_after=event.sequence_number))
        assert deltas(events[: cut + 1] + rest) == deltas(events)
        assert cut == len(events) - 1 or rest[-1].type == events[-1].type


def test_a_place_beyond_the_last_event_is_refused(stack: Stack, post: Post) -> None:
    name = frames(post(PATH, ask(stream=True)).text)[0].json["response"]["id"]
    beyond = stack.http.get(f"{PATH}/{name}", params={"stream": "true", "starting_after": 999999})
    assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, "starting_after")


def test_background_work_goes_on_without_its_client(stack: Stack) -> None:
    client = stack.openai()
    made = client.responses.create(**ask(background=True))
    assert made.status == "queued"
    done = eventually(lambda: (r := client.responses.retrieve(made.id)).status == "completed" and r, what="the response")
    assert "Paris" in done.output_text


def test_a_background_stream_is_resumed_after_its_client_left(stack: Stack) -> None:
    client = stack.openai()
    body = ask(background=True, stream=True, input="xyz", max_output_tokens=300, extra_body=ENDLESS)
    with client.responses.create(**body) as stream:
        first = [next(iter(stream)) for _ in range(5)]
    rest = list(client.responses.retrieve(first[0].response.id, stream=True, starting_after=first[-1].sequence_number))
    assert deltas(first + rest) == rest[-1].response.output_text


def test_cancelling_a_background_response(stack: Stack) -> None:
    client = stack.openai()
    made = client.responses.create(**ask(background=True, max_output_tokens=1900, extra_body=ENDLESS))
    assert client.responses.cancel(made.id).status == "cancelled"
    eventually(lambda: stack.http.get("/stats").json()["active"] == 0, what="a free engine")
    assert client.responses.retrieve(made.id).status == "cancelled"


def test_deleted_responses_are_gone(stack: Stack) -> None:
    client = stack.openai()
    made = client.responses.create(**ask())
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**ask(previous_response_id=made.id))


def test_what_is_not_to_be_stored_is_not(stack: Stack) -> None:
    client = stack.openai()
    made = client.responses.create(**ask(store=False))
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_truncation_drops_the_oldest_turns(post: Post) -> None:
    turns = [{"role": "user" if i % 2 == 0 else "assistant", "content": "word " * 150} for i in range(21)]
    assert post(PATH, ask(input=turns)).json()["error"]["code"] == "context_length_exceeded"
    assert post(PATH, ask(input=turns, truncation="auto", max_output_tokens=2)).status_code == 200


def test_input_tokens_are_counted(post: Post) -> None:
    counted = post(f"{PATH}/input_tokens", {"model": "tiny", "input": QUESTION}).json()
    assert counted["input_tokens"] == post(PATH, ask()).json()["usage"]["input_tokens"]


def test_a_conversation_grows_by_its_responses(stack: Stack) -> None:
    client = stack.openai()
    conversation = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "Hello."}], metadata={"topic": "x"}
    )
    client.responses.create(**ask(conversation=conversation.id))
    list(client.responses.create(**ask(conversation=conversation.id, input="And Italy?", stream=True)))
    items = client.conversations.items.list(conversation.id, order="asc").data
    assert [item.role for item in items] == ["user", "user", "assistant", "user", "assistant"]
    client.conversations.items.delete(items[0].id, conversation_id=conversation.id)
    assert len(client.conversations.items.list(conversation.id).data) == 4
    assert client.conversations.update(conversation.id, metadata={"topic": "y"}).metadata == {"topic": "y"}
    client.conversations.delete(conversation.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**ask(conversation=conversation.id))
