"""Every template on fixed inputs and written-down answers of a model: which rows, which drops, which questions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.conf import settings

from mlxplatform.datasets import inputs as input_fields
from mlxplatform.datasets import shape
from mlxplatform.datasets.templates import cot_synthesis, hf_dataset_import, prompt_reconstruction, rag_qa, topic_tree
from mlxplatform.datasets.templates.base import Answer, CallFailed, Draft, Drop, Source, SourceError, Template
from mlxplatform.datasets.templates.parsing import fenced_code, itself, question_in, score, string_list
from mlxplatform.datasets.templates.registry import TEMPLATES
from mlxplatform.datasets.templates.together import together
from mlxplatform.inference.contract import Message, Refusal, ToolCall

Script = Callable[[str, list[Message]], str | Answer]


class Asked:
    """An ``ask`` that answers from a script and remembers what it was asked."""

    model = "tiny"

    def __init__(self, script: Script, calls: list[tuple[str, list[Message], dict[str, Any]]]) -> None:
        self.script, self.calls = script, calls
        self.steps: set[str] = set()

    async def __call__(self, step: str, messages: Sequence[Message], **options: Any) -> Answer:
        assert step not in self.steps, f"step {step} asked twice"
        self.steps.add(step)
        self.calls.append((step, list(messages), options))
        said = self.script(step, list(messages))
        return said if isinstance(said, Answer) else Answer(said.strip(), said)


class Made:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.drops: list[Drop] = []
        self.calls: list[tuple[str, list[Message], dict[str, Any]]] = []

    @property
    def reasons(self) -> list[str]:
        return [drop.reason for drop in self.drops]


def make(name: str, given: dict[str, Any], script: Script = lambda step, messages: "said") -> Made:
    """Everything a template makes of inputs, as a run would."""
    template = TEMPLATES[name]
    inputs = {**input_fields.coerce(template, given), "@project": "default"}
    made = Made()
    keys: set[str] = set()
    for source in template.sources(inputs):
        if isinstance(source, Drop):
            made.drops.append(source)
            continue
        assert source.key not in keys and len(source.key) <= 100
        keys.add(source.key)
        for item in asyncio.run(_build(template, source, inputs, Asked(script, made.calls))):
            if isinstance(item, Draft):
                made.rows.append(dict(item.content))
                assert shape.problem(item.content, check=template.check) == ("", "")
            else:
                made.drops.append(item)
    return made


async def _build(template: Template, source: Source, inputs: dict[str, Any], ask: Asked) -> list[Draft | Drop]:
    return list(await template.build(source, inputs, ask))


def turns(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in row["messages"]]


def test_the_thirteen_known_templates_and_more_are_there() -> None:
    known = [
        "sft_qa_pairs",
        "dpo_pref_pairs",
        "code_completion",
        "hf_dataset_import",
        "format_conversion",
        "style_transfer",
        "self_instruct",
        "prompt_reconstruction",
        "multi_turn_chat",
        "tool_use_traces",
        "rag_qa",
        "cot_synthesis",
        "verified_code",
    ]
    assert list(TEMPLATES)[:13] == known
    assert {"evol_instruct", "magpie", "persona_qa", "preference_pairs", "topic_tree", "answer_fill"} < set(TEMPLATES)
    for template in TEMPLATES.values():
        json.dumps(template.describe())


def test_question_and_answer_blocks() -> None:
    text = "q: One?\nA: Yes.\nAnd more.\n\nno pair\n\n  Q : Two?\r\na: No.\n\nQ: only a question\n\nA: only an answer"
    made = make("sft_qa_pairs", {"pairs_text": text})
    assert [turns(row) for row in made.rows] == [
        [("user", "One?"), ("assistant", "Yes.\nAnd more.")],
        [("user", "Two?"), ("assistant", "No.")],
    ]
    assert made.reasons == ["no_pair"] * 3
    assert made.drops[0].where == "block 2"


def test_preference_csv() -> None:
    text = 'prompt,chosen,rejected\r\n"a, ""b""",good,"bad\nworse"\r\nx,,y\r\nshort\r\n'
    made = make("dpo_pref_pairs", {"csv_text": text})
    assert made.rows == [{"prompt": 'a, "b"', "chosen": "good", "rejected": "bad\nworse"}]
    assert made.reasons == ["empty_value", "cell_count"]
    other = make("dpo_pref_pairs", {"csv_text": "Rejected,Prompt,extra,Chosen\nr,p,e,c"})
    assert other.rows == [{"prompt": "p", "chosen": "c", "rejected": "r"}]
    assert make("dpo_pref_pairs", {"csv_text": "a,b\n1,2"}).reasons == ["missing_column"]
    assert make("dpo_pref_pairs", {"csv_text": "x" * 200_000}).reasons == []
    assert make("dpo_pref_pairs", {"csv_text": 'prompt;chosen;rejected\n"a;b;c\n'}).reasons == ["not_csv"]


def test_code_is_cut_where_the_seed_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "HOME", tmp_path)
    folder = tmp_path / "imports" / "code"
    folder.mkdir(parents=True)
    body = "    return sum(range(number)) + 1\n"
    (folder / "b.py").write_text(
        f"import os\n\ndef one(number):\n{body}\nasync def two(number):\n{body}\nclass Three:\n    pass\n"
    )
    (folder / "a.py").write_text(f"def zero(number):\n{body}")
    (tmp_path / "secret.py").write_text(f"def secret(number):\n{body}")
    (folder / "link.py").symlink_to(tmp_path / "secret.py")
    first = make("code_completion", {"src_dir": "code"})
    assert first.rows == make("code_completion", {"src_dir": str(folder)}).rows
    wholes = [row["prompt"] + row["completion"] for row in first.rows]
    assert [whole.split("(")[0] for whole in wholes] == ["def zero", "def one", "async def two"]
    for row, whole in zip(first.rows, wholes, strict=True):
        assert 0.25 * len(whole) - 1 <= len(row["prompt"]) <= 0.75 * len(whole)
    assert len(make("code_completion", {"src_dir": "code", "max_pairs": 1}).rows) == 1
    for outside in ("/etc", "..", "code/../..", "missing", "~"):
        with pytest.raises(SourceError):
            make("code_completion", {"src_dir": outside})


def hub(pages: dict[int, list[dict[str, Any]]], statuses: list[int]) -> httpx.MockTransport:
    """A stand-in for the datasets server; ``statuses`` are answered first, one a request for rows."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/splits":
            return httpx.Response(
                200, json={"splits": [{"config": "other", "split": "test"}, {"config": "main", "split": "train"}]}
            )
        assert request.url.params["config"] == "main"
        if statuses:
            return httpx.Response(statuses.pop(0), text="not now")
        return httpx.Response(200, json={"rows": [{"row": row} for row in pages.get(int(request.url.params["offset"]), [])]})

    return httpx.MockTransport(answer)


def test_hub_rows_come_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {
        0: [{"text": f" text {n} ", "label": n % 2} for n in range(100)],
        100: [
            {"text": "x", "label": 0},
            {"text": None, "label": 0},
            {"text": {"a": None}, "label": 0},
            {"text": "last one", "label": 0},
        ],
    }
    real = httpx.Client
    monkeypatch.setattr(hf_dataset_import, "WAITS", (0.0, 0.0))
    monkeypatch.setattr(hf_dataset_import.httpx, "Client", lambda **o: real(transport=hub(pages, [503, 429]), **o))
    given = {"hf_id": "a/b", "label_column": "label", "label_filter": "0", "min_chars": 3}
    made = make("hf_dataset_import", given)
    assert [row["text"] for row in made.rows] == [*(f"text {n}" for n in range(0, 100, 2)), "last one"]
    assert made.reasons.count("other_label") == 50 and made.reasons.count("too_short") == 2
    assert [drop.detail for drop in made.drops if drop.reason == "not_text"] == ["text is an object"]
    capped = make("hf_dataset_import", {"hf_id": "a/b", "max_rows": "3", "output_format": "messages_user_only"})
    assert [turns(row) for row in capped.rows] == [[("user", f"text {n}")] for n in range(3)]
    with pytest.raises(SourceError, match="no column body; there are text, label"):
        make("hf_dataset_import", {"hf_id": "a/b", "text_column": "body"})
    monkeypatch.setattr(hf_dataset_import.httpx, "Client", lambda **o: real(transport=hub(pages, [404]), **o))
    with pytest.raises(SourceError, match="answered 404"):
        make("hf_dataset_import", {"hf_id": "a/b"})


def test_format_conversion_says_why_a_line_is_dropped() -> None:
    text = (
        '{"q":"1","a":2}\n\nnot json\n{"q":"x"}\n["list"]\n{"q":{"deep":1},"a":"y"}\n{"q":null,"a":"y"}\n{"q":"\u2028","a":true}'
    )
    made = make("format_conversion", {"input_jsonl": "\ufeff" + text, "user_key": "q", "assistant_key": "a"})
    assert [turns(row) for row in made.rows] == [[("user", "1"), ("assistant", "2")], [("user", "\u2028"), ("assistant", "true")]]
    assert [(drop.reason, drop.where) for drop in made.drops] == [
        ("not_json", "line 3, column 1"),
        ("missing_key", "line 4"),
        ("not_an_object", "line 5, column 1"),
        ("not_text", "line 6"),
        ("missing_key", "line 7"),
    ]


def test_pasted_lines_are_read_as_strictly_as_files() -> None:
    text = '{"input":"\\ud800","output":"a"}\r{"input":"q","input":"r","output":"a"}\r{"input":NaN,"output":"a"}'
    made = make("format_conversion", {"input_jsonl": text})
    assert [(drop.reason, drop.where) for drop in made.drops] == [
        ("not_json", "line 1, column 11"),
        ("duplicate_key", "line 2, column 14"),
        ("not_json", "line 3, column 10"),
    ]
    chats = make("from_conversations", {"conversations": '{\n "messages": ["hi"]\n}'})
    assert [(drop.reason, drop.detail) for drop in chats.drops] == [
        ("not_a_conversation", "messages[0] must be an object, got text")
    ]
    assert make("from_conversations", {"conversations": '[{"messages": "\\ud800"}]'}).reasons == ["not_json"]


def test_old_line_ends_divide_texts() -> None:
    assert make("sft_qa_pairs", {"pairs_text": "Q: a\rA: b\r\rQ: c\rA: d"}).rows[1]["messages"][0]["content"] == "c"


def test_style_transfer_keeps_empty_rewrites() -> None:
    made = make("style_transfer", {"reference_samples": "ref", "raw_text": "one\n\ntwo"}, lambda step, messages: "")
    assert made.rows == [{"prompt": "one", "completion": ""}, {"prompt": "two", "completion": ""}]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ('Sure: ["a, b", "c"] done', ["a, b", "c"]),
        ('[1] first ["x"]', ["x"]),
        ("[one, 'two', \"three]", ["one", "two", "three"]),
        ("1. first\n2) second\n- third\n• fourth\ntext", ["first", "second", "third", "fourth"]),
        ('```json\n["a",\n "b"]\n```', ["a", "b"]),
        ('["cut off", "in the mid', []),
        ('[{"instruction": "do"}, "it"]', ["do", "it"]),
        ("nothing", []),
    ],
)
def test_lists_are_read_from_what_models_write(said: str, found: list[str]) -> None:
    assert string_list(said) == found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("How long is the Rhine?", "How long is the Rhine?"),
        ("Write one clear question this passage answers: How many years does a queen live?", "How many years does a queen live?"),
        ('Sure! You can ask:\n\n**"What is tea?"**\n\nI hope it helps.', "What is tea?"),
        ("What is the ratio 3: 4 called?", "What is the ratio 3: 4 called?"),
        ("Explain how bread rises.", "Explain how bread rises."),
        ("\u8336\u662f\u4ec0\u4e48\uff1f", "\u8336\u662f\u4ec0\u4e48\uff1f"),
        ("  ", ""),
    ],
)
def test_the_question_is_found_in_what_was_written(said: str, found: str) -> None:
    assert question_in(said) == found


@pytest.mark.parametrize(
    ("said", "original", "kept"),
    [
        ("Here is the translation:\n\nGuten Tag.", "Good day.", "Guten Tag."),
        (
            'This is a rewritten text with the requested style:\n\n"It rained. He left."',
            "He left in the rain.",
            "It rained. He left.",
        ),
        ("**Sure:**\nGuten Tag.", "Good day.", "Guten Tag."),
        ("Zutaten:\nMehl", "Ingredients:\nflour", "Zutaten:\nMehl"),
        ("Zutaten:", "Ingredients", "Zutaten:"),
        ('"Ja", sagte er, "nein"', "x", '"Ja", sagte er, "nein"'),
        ('"Ja."', '"Yes."', '"Ja."'),
        ("", "x", ""),
    ],
)
def test_what_was_asked_for_is_kept_without_the_talk_about_it(said: str, original: str, kept: str) -> None:
    assert itself(said, original) == kept


def test_numbers_before_items_of_a_list_are_no_content() -> None:
    assert string_list('["1. Name a river", "2) Count to 10", "3.5 is what?", "2024 was warm"]') == [
        "Name a river",
        "Count to 10",
        "3.5 is what?",
        "2024 was warm",
    ]


def test_answers_can_be_held_to_their_passage() -> None:
    passage = "The Rhine flows 1,230 kilometres from the Alps to the North Sea."
    assert rag_qa.grounded("It flows 1,230 kilometres.", passage) == 1
    assert rag_qa.grounded("The passage does not say.", passage) == 1
    assert rag_qa.grounded("It flows 4,000 kilometres.", passage) == 0
    assert rag_qa.grounded("Tea is a beverage made of leaves", passage) < rag_qa.GROUNDED
    given = {"documents": passage, "min_chunk_chars": 40, "questions_per_chunk": 1, "only_grounded": "yes"}
    assert make(
        "rag_qa", given, lambda step, messages: "How long is the Rhine?" if step == "question" else "It is 99."
    ).reasons == ["not_grounded"]


def test_grades_and_code_blocks() -> None:
    assert score("8/10 because", 1, 10) == 8
    assert score("Grade: 7.5", 1, 10) == 7.5
    assert score("99 or none", 1, 10) is None
    assert fenced_code("x\n```python\na = 1\n```\ny") == ("python", "a = 1")
    assert fenced_code("```\ncut off") == ("", "cut off")


def test_self_instruct_leaves_the_answers_empty() -> None:
    made = make("self_instruct", {"seeds": "s1\n\n s2 ", "variants_per_seed": "2"}, lambda step, messages: '["a","b","c"]')
    assert [turns(row) for row in made.rows] == [[("user", text), ("assistant", "")] for text in "abab"]
    assert make("self_instruct", {"seeds": "s"}, lambda step, messages: '["lakes, njfjijjjjjjjjjjj"]').reasons == ["degenerate"]
    template = TEMPLATES["self_instruct"]
    assert template.prompts_only({}) and template.pool_limit == 0.7


def test_self_instruct_keeps_instructions_only() -> None:
    long = "Name the rivers and lakes of " + "many lands and " * 20
    said = json.dumps(["Name a lake", "Name a sea - the answer is the Baltic", "Two\nlines", long])
    made = make("self_instruct", {"seeds": "Name a river", "variants_per_seed": "4"}, lambda step, messages: said)
    assert [turns(row)[0][1] for row in made.rows] == ["Name a lake"] and made.reasons == ["answered", "answered", "cut_off"]
    spec = made.calls[0][2]["constraint"].spec
    assert spec["items"]["maxLength"] == 120


def test_a_guessed_request_that_repeats_the_text_is_none() -> None:
    text = "Yeast turns sugar into carbon dioxide, so the bread rises in the oven."
    said = {"prompt": f"Here is a revised version: {text}", "draft": "a draft"}
    assert make("prompt_reconstruction", {"human_text": text}, lambda step, messages: said[step]).reasons == ["no_request"]


def test_prompt_reconstruction_locks_what_must_stay() -> None:
    text = "On 3 March 2024 sales rose 12.5% to $1,200 (see [3], (Smith 2020)) at https://x.y/z?a=1 with `code`."
    said = {"prompt": "", "draft": "a draft"}
    [row] = make("prompt_reconstruction", {"human_text": text}, lambda step, messages: said[step]).rows
    assert turns(row)[-1] == ("assistant", text)
    meta = row["metadata"]
    assert meta["inferred_prompt"] == prompt_reconstruction.FALLBACK_PROMPT and meta["source_ai_draft"] == "a draft"
    assert meta["preservation_locks"] == {
        "urls": ["https://x.y/z?a=1"],
        "percentages": ["12.5%"],
        "currencies": ["$1,200"],
        "dates": ["3 March 2024"],
        "code": ["`code`"],
        "citations": ["[3]", "(Smith 2020)"],
    }
    assert make("prompt_reconstruction", {"target_text": "x"}, lambda step, messages: "").reasons == ["empty_draft"]


def test_conversations_alternate_and_stop_at_silence() -> None:
    made = make("multi_turn_chat", {"seeds": "hi", "turns": 4}, lambda step, messages: step)
    assert [role for role, _ in turns(made.rows[0])] == ["system", "user", *["assistant", "user"] * 2, "assistant"]
    assert "Assistant: turn0" in (made.calls[1][1][-1].content or "")
    quiet = make("multi_turn_chat", {"seeds": "hi"}, lambda step, messages: "" if step == "turn1" else step)
    assert [role for role, _ in turns(quiet.rows[0])] == ["system", "user", "assistant"]
    speechless = make("multi_turn_chat", {"seeds": "hi"}, lambda step, messages: "" if step == "turn2" else step)
    assert [role for role, _ in turns(speechless.rows[0])] == ["system", "user", "assistant"]
    echoing = make(
        "multi_turn_chat", {"seeds": "hi"}, lambda step, messages: "[The user's next message:" if step == "turn1" else step
    )
    assert [message["role"] for message in echoing.rows[0]["messages"]] == ["system", "user", "assistant"]
    assert make("multi_turn_chat", {"seeds": "hi"}, lambda step, messages: "").reasons == ["empty_answer"]
    played = {"turn1": 'User: "Why is that so?"\n\nAssistant: because', "turn3": "I'm glad to help. What is it?"}
    made = make("multi_turn_chat", {"seeds": "hi", "turns": 5}, lambda step, messages: played.get(step, step))
    assert turns(made.rows[0])[2:] == [("assistant", "turn0"), ("user", "Why is that so?"), ("assistant", "turn2")]
    with pytest.raises(Refusal):
        make("multi_turn_chat", {"seeds": "hi", "turns": 1})


def test_tool_traces() -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    call = ToolCall("call_1", "weather", '{"city":"Rome"}')

    def script(step: str, messages: list[Message]) -> Answer | str:
        return Answer("", tool_calls=(call,)) if step == "call" and "Rome" in (messages[0].content or "") else "It is 21."

    given = {"tools_json": json.dumps(tools), "scenarios": "In Rome?\nIn Oslo?", "mock_results": "21\n5"}
    made = make("tool_use_traces", given, script)
    [row] = made.rows
    assert [role for role, _ in turns(row)] == ["user", "assistant", "tool", "assistant"]
    assert row["messages"][1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":"Rome"}'}
    assert row["messages"][2]["tool_call_id"] == "call_1" and row["tools"] == tools
    assert made.reasons == ["no_tool_call"]
    assert [options.get("tool_choice") for step, _, options in made.calls if step == "call"] == ["required"] * 2
    for echo in ("21", '<tool_response>\n{"temp": 21}', "It was called:\n<tool_response>\n21\n</tool_response>"):
        said = {"call": Answer("", tool_calls=(call,)), "answer": echo}
        one = {**given, "scenarios": "In Rome?", "mock_results": "21"}
        assert make("tool_use_traces", one, lambda step, messages, said=said: said[step]).reasons == ["repeats_result"]  # type: ignore[misc]
    assert make("tool_use_traces", {**given, "mock_results": "21"}).reasons == ["count_mismatch"]
    check = TEMPLATES["tool_use_traces"].check_inputs
    assert check is not None
    for wrong in ({"a": 1}, [], [{"function": {}}], ["x"]):
        with pytest.raises(Refusal) as caught:
            check({"tools_json": wrong}, "default")
        assert caught.value.param == "inputs.tools_json"


def test_a_question_that_repeats_the_passage_is_none() -> None:
    given = {"documents": "The Rhine flows from the Alps to the North Sea.", "questions_per_chunk": 1}
    assert make("rag_qa", given, lambda step, messages: "The Rhine flows to the North Sea.").reasons == ["no_question"]
    assert make("rag_qa", given, lambda step, messages: "Explain why rivers flow downhill.").reasons == []


def test_passages_are_glued_and_the_tail_joins() -> None:
    assert rag_qa.chunk("aa\n\nbb\n\ncccc\n\nd", 5) == ["aa\n\nbb", "cccc\n\nd"]
    assert rag_qa.chunk("short", 200) == ["short"]
    given = {"documents": "x" * 300, "questions_per_chunk": 2}
    made = make("rag_qa", given, lambda step, messages: "" if step == "answer" else "why?")
    assert made.reasons == ["empty_answer", "empty_answer"]
    rows = make("rag_qa", given, lambda step, messages: step).rows
    assert [turns(row)[1:] for row in rows] == [[("user", "question"), ("assistant", "answer")]] * 2
    assert rows[0]["metadata"] == {"chunk_index": 0, "passage_chars": 300}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (Answer("42", "<think>six times seven</think>42"), ("six times seven", "42")),
        (Answer("42", "42", reasoning="six times seven"), ("six times seven", "42")),
        (Answer("a\n\nb\n\nc", "a\n\nb\n\nc"), ("a\n\nb", "c")),
        (Answer("alone", "alone"), ("alone", "alone")),
        (Answer("x", "<think>cut off\n\nat the end"), ("cut off", "at the end")),
        (Answer("", ""), ("", "")),
    ],
)
def test_reasoning_is_found_or_made(answer: Answer, found: tuple[str, str]) -> None:
    assert cot_synthesis.trace_and_answer(answer) == found


def test_chain_of_thought_rows() -> None:
    [row] = make("cot_synthesis", {"questions": "2+2?"}, lambda step, messages: "<think>two and two</think>\n4").rows
    assert turns(row)[1] == ("assistant", "<think>\ntwo and two\n</think>\n\n4")
    assert row["metadata"]["category"].startswith("math")


def test_evolutions_that_failed_are_dropped() -> None:
    said = {"evolve0": "Explain rain to a child in three steps", "answer0": "ok", "evolve1": "I'm sorry, I cannot do that"}
    made = make("evol_instruct", {"seeds": "Explain rain"}, lambda step, messages: said[step])
    assert [turns(row) for row in made.rows] == [[("user", said["evolve0"]), ("assistant", "ok")]]
    assert made.reasons == ["failed_evolution"]
    same = make("evol_instruct", {"seeds": "Explain the rain to me"}, lambda step, messages: "Explain the rain to me")
    assert same.reasons == ["failed_evolution"]


def test_magpie_draws_from_the_bare_user_turn() -> None:
    made = make("magpie", {"draws": 2, "system_prompt": "Be kind."}, lambda step, messages: f"what is {step}?")
    assert len(made.rows) == 2 and turns(made.rows[0])[0] == ("system", "Be kind.")
    options = made.calls[0][2]
    assert options["prompt"].endswith("<|im_start|>user\n") and options["stop"] == ("<|im_end|>",)


def test_personas_ask_about_each_topic() -> None:
    made = make("persona_qa", {"personas": "nurse\npilot", "topics": "sleep", "questions_each": 2}, lambda step, messages: step)
    assert [row["metadata"]["persona"] for row in made.rows] == ["nurse", "nurse", "pilot", "pilot"]


def test_the_best_and_the_worst_answer_make_a_pair() -> None:
    grades = iter(["9", "3", "no idea"])

    def script(step: str, messages: list[Message]) -> str:
        return next(grades) if step.startswith("grade") else f"text of {step}"

    [row] = make("preference_pairs", {"prompts": "p"}, script).rows
    assert (row["chosen"], row["rejected"]) == ("text of answer0", "text of answer1")
    assert make("preference_pairs", {"prompts": "p"}, lambda step, messages: "5").reasons == ["no_preference"]
    assert make("preference_pairs", {"prompts": "p"}, lambda step, messages: "?").reasons == ["too_few_grades"]


def test_topic_trees_are_covered_to_the_leaves() -> None:
    def script(step: str, messages: list[Message]) -> str:
        return '["a", "b"]' if step.startswith(("split", "ask")) else "an answer"

    given = {"topics": "cooking", "depth": 2, "branches": 2, "questions_per_leaf": 2}
    made = make("topic_tree", given, script)
    assert len(made.rows) == 8
    assert made.rows[-1]["metadata"]["topic"] == ["cooking", "b", "b"]
    with pytest.raises(Refusal, match="200000 rows a subject; at most 2000"):
        large = input_fields.coerce(
            TEMPLATES["topic_tree"], {"topics": "x", "depth": 4, "branches": 10, "questions_per_leaf": 20}
        )
        topic_tree.check_inputs(large, "default")


@pytest.mark.parametrize(
    ("name", "given", "at_once"),
    [
        ("topic_tree", {"topics": "cooking", "depth": 2, "branches": 2, "questions_per_leaf": 2}, 8),
        ("preference_pairs", {"prompts": "p", "answers": 5}, 5),
    ],
)
def test_one_source_asks_at_once_what_does_not_wait_for_an_answer(name: str, given: dict[str, Any], at_once: int) -> None:
    template = TEMPLATES[name]
    inputs = {**input_fields.coerce(template, given), "@project": "default"}
    [source] = template.sources(inputs)
    assert isinstance(source, Source)

    class Counting(Asked):
        asking = most = 0

        async def __call__(self, step: str, messages: Sequence[Message], **options: Any) -> Answer:
            self.asking += 1
            self.most = max(self.most, self.asking)
            await asyncio.sleep(0)
            self.asking -= 1
            return await super().__call__(step, messages, **options)

    ask = Counting(lambda step, messages: '["a", "b"]' if step.startswith(("split", "ask")) else f"{step} 5", [])
    asyncio.run(_build(template, source, inputs, ask))
    assert ask.most == at_once


def test_a_call_that_fails_ends_those_beside_it() -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async def failing() -> None:
        raise CallFailed("engine_unavailable", "gone")

    with pytest.raises(CallFailed):
        asyncio.run(together([endless(), failing(), endless()]))
    assert ended == ["ended", "ended"]


def test_extraction_follows_the_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    given = {"texts": "one\n\ntwo", "schema": json.dumps(schema)}
    answers = iter(['{"n": 1}', '{"n": "x"}'])
    made = make("structured_extraction", given, lambda step, messages: next(answers))
    assert [turns(row)[1][1] for row in made.rows] == ['{"n": 1}'] and made.reasons == ["schema"]
    constraint = made.calls[0][2]["constraint"]
    assert (constraint.kind, constraint.spec) == ("json_schema", schema)


def test_translations() -> None:
    said = {"1.1": "Hallo", "1.2": "hello"}
    answers = iter(said.values())
    made = make("translation", {"texts": "Hello", "languages": "German, English"}, lambda step, messages: next(answers))
    assert [row["metadata"]["language"] for row in made.rows] == ["German"] and made.reasons == ["not_translated"]
    remarks = "Here it is:\n\nDie Bücherei ist von neun an offen.\n\nI kept the time as it is."
    texts = {"texts": "The library is open from nine.", "languages": "German"}
    assert (
        turns(make("translation", texts, lambda step, messages: remarks).rows[0])[1][1] == "Die Bücherei ist von neun an offen."
    )
    endless = Answer("Die Die Die", "Die Die Die", finish_reason="length")
    assert make("translation", texts, lambda step, messages: endless).reasons == ["cut_off"]
    english = make("translation", texts, lambda step, messages: "The library is open at nine in the morning.")
    assert english.reasons == ["not_translated"]
    back = make(
        "back_translation", {"texts": "Good.", "min_grade": 4}, lambda step, messages: "3" if step == "grade" else "Say it"
    )
    assert back.reasons == ["low_grade"]
    [row] = make("back_translation", {"texts": "Good."}, lambda step, messages: "Say it").rows
    assert turns(row) == [("user", "Say it"), ("assistant", "Good.")]


def test_pasted_conversations() -> None:
    rows = [
        {
            "conversations": [
                {"from": "human", "value": "q"},
                {"from": "gpt", "value": "a"},
                {"from": "human", "value": "left open"},
            ]
        },
        {"chat_rounds": [{"role": "human", "content": "q2"}, {"role": "bot", "content": "a2"}]},
        {
            "messages": [
                {"role": "assistant", "content": "hello"},
                {"role": "user", "content": "q3"},
                {"role": "assistant", "content": "a3"},
            ]
        },
        {"other": 1},
    ]
    for text in (json.dumps(rows), "\n".join(map(json.dumps, rows))):
        made = make("from_conversations", {"conversations": text})
        assert [turns(row) for row in made.rows] == [
            [("user", "q"), ("assistant", "a")],
            [("user", "q2"), ("assistant", "a2")],
            [("user", "q3"), ("assistant", "a3")],
        ]
        assert made.reasons == ["not_a_conversation"]


def test_verified_code_needs_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlxplatform.datasets import sandbox

    verdicts = {"good": "verified", "bad": "failed", "slow": "unverified"}

    async def verify(code: str) -> sandbox.Verdict:
        return sandbox.Verdict(verdicts[code.split()[1]], error="boom")  # type: ignore[arg-type]

    def name(messages: list[Message]) -> str:
        return (messages[-1].content or "").split()[0]

    monkeypatch.setattr(sandbox, "verify", verify)
    script: Script = lambda step, messages: f"```python\ndef {name(messages)} (): pass\nassert {name(messages)}() is None\n```"  # noqa: E731
    made = make("verified_code", {"specs": "good\nbad\nslow"}, script)
    assert [row["metadata"]["verified"] for row in made.rows] == [True]
    assert made.reasons == ["code_failed", "code_unverified"]
    assert make("verified_code", {"specs": "x"}, lambda step, messages: "```python\nprint('nothing asserted')\n```").reasons == [
        "no_assertions"
    ]
    kept = make("verified_code", {"specs": "slow", "keep_unverified": "yes"}, script)
    assert [row["metadata"]["verified"] for row in kept.rows] == [False]


def test_inputs_are_checked_by_name_and_type() -> None:
    def refused(name: str, given: Any) -> Refusal:
        with pytest.raises(Refusal) as caught:
            input_fields.coerce(TEMPLATES[name], given)
        return caught.value

    assert refused("rag_qa", {"documents": "x", "color": 1}).param == "inputs.color"
    assert refused("rag_qa", {}).code == "missing_field"
    assert refused("rag_qa", {"documents": ["x"]}).param == "inputs.documents"
    assert refused("rag_qa", {"documents": "x", "questions_per_chunk": "many"}).param == "inputs.questions_per_chunk"
    assert refused("rag_qa", {"documents": "x", "questions_per_chunk": 0}).param == "inputs.questions_per_chunk"
    assert refused("tool_use_traces", {"tools_json": [{"name": "a\x00"}]}).param == "inputs.tools_json[0].name"
    assert refused("tool_use_traces", {"tools_json": '[{"name": "a\\u0000"}]'}).param == "inputs.tools_json[0].name"
    assert refused("rag_qa", {"documents": "x", "questions_per_chunk": True}).param == "inputs.questions_per_chunk"
    assert refused("rag_qa", "text").param == "inputs"
    assert refused("tool_use_traces", {"tools_json": "[", "scenarios": "a", "mock_results": "b"}).param == "inputs.tools_json"
    assert input_fields.coerce(TEMPLATES["rag_qa"], {"documents": "x", "questions_per_chunk": "3.9"})["questions_per_chunk"] == 3


@pytest.mark.parametrize(
    ("name", "given", "lost", "rows"),
    [
        ("topic_tree", {"topics": "cooking", "depth": 1, "branches": 2, "questions_per_leaf": 2}, "answer1.0", 3),
        ("topic_tree", {"topics": "cooking", "depth": 1, "branches": 2, "questions_per_leaf": 2}, "ask1", 2),
        ("evol_instruct", {"seeds": "Say it", "steps": 3}, "answer2", 2),
    ],
)
def test_a_call_that_fails_costs_its_row_only(name: str, given: dict[str, Any], lost: str, rows: int) -> None:
    def script(step: str, messages: list[Message]) -> str:
        if step == lost:
            raise CallFailed("engine_poisoned", "it died")
        return '["a", "b"]' if step.startswith(("split", "ask")) else f"words of {step}"

    made = make(name, given, script)
    assert len(made.rows) == rows and made.reasons == ["call_failed:engine_poisoned"]


def test_a_failed_call_is_an_exception_a_template_need_not_know() -> None:
    def fail(step: str, messages: list[Message]) -> str:
        raise CallFailed("context_length_exceeded", "too long")

    with pytest.raises(CallFailed):
        make("cot_synthesis", {"questions": "q"}, fail)


def test_the_reference_page_is_current() -> None:
    from mlxplatform.datasets.management.commands.dataset_templates import reference

    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "templates.md"
    assert page.read_text() == reference(), "run: manage.py dataset_templates > docs/reference/templates.md"
