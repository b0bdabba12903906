"""One request to everything the engine needs: render, encode, resolve, check. Runs inside the child.

Pure apart from reading model directories, which are kept loaded. Everything that can be refused for what
it asks is refused here, before the engine hears of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from llguidance import LLTokenizer

from mlxplatform.inference.contract import InferenceRequest, Refusal
from workers.engine.tool_parsers import FALLBACK, detect
from workers.prepare import grammar, limits, marks, messages, resolve
from workers.prepare.encode import PromptEncoder
from workers.prepare.model import TextModel, load
from workers.prepare.protocol import Prepared, TextSpec
from workers.prepare.template import render

#: Model directories kept loaded; a tokenizer takes 5-60 MB.
LOADED_MODELS = 4

#: A generation primer ("<|im_start|>assistant\n<think>\n") longer than this is a failed probe (tokens).
LONGEST_PRIMER = 64

#: How embedding models that follow instructions (Qwen3-Embedding, E5-instruct) read a query.
QUERY = "Instruct: {}\nQuery:"

#: Begins the message of a harmony answer that the user sees.
_FINAL_HEADER = "<|channel|>final<|message|>"

#: What the boundary probe lets both sides say; it only has to begin unlike any primer.
_DUMMY_REPLY = "."


@dataclass
class Loaded:
    model: TextModel
    encoder: PromptEncoder
    #: Signature of the template's files when loaded: a changed model directory is read anew.
    stamp: tuple[tuple[str, int, int], ...]
    #: Built for the first constrained request.
    grammar_tokenizer: LLTokenizer | None = None
    primers: dict[tuple[Any, ...], int | None] = field(default_factory=dict)

    @cached_property
    def tool_format(self) -> str:
        """The family of the model's own layout for tool calls."""
        stated = self.model.tokenizer_config.get("tool_parser_type")
        return detect("\n".join(self.model.templates.values()), self.model.tokenizer.token_to_id, stated)


def _stamp(directory: Path) -> tuple[tuple[str, int, int], ...]:
    names = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "chat_template.jinja")
    found = []
    for name in names:
        try:
            status = (directory / name).stat()
        except OSError:
            continue
        found.append((name, status.st_mtime_ns, status.st_size))
    return tuple(found)


def _sealed_turn(turn: dict[str, Any], encoder: PromptEncoder, pair: tuple[str, str] | None) -> dict[str, Any]:
    """A turn in which no text can become a control token.

    Reasoning marks in what the assistant said stay whole: templates look for them to cut old reasoning away.
    """
    spared = pair if pair and turn["role"] == "assistant" else ()
    return {key: value if key == "role" else encoder.seal(value, spared=spared) for key, value in turn.items()}


@dataclass(frozen=True)
class _Rendered:
    text: str
    source: str
    variables: dict[str, Any]
    turns: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    native_tools: bool


class Preparation:
    """Prepares requests for the models it is pointed at."""

    def __init__(self) -> None:
        self._models: OrderedDict[str, Loaded] = OrderedDict()

    def prepare(self, request: InferenceRequest, model_dir: str, context: int = 0) -> Prepared:
        loaded = self._loaded(model_dir)
        model = loaded.model
        request = resolve.with_model_default(request, loaded.tool_format)
        window = min(model.context, context) if context > 0 else model.context
        resolve.check_logit_bias(request.sampling.logit_bias, model.vocab_size)
        if request.kind == "embedding":
            return self._embedding(request, loaded, window)
        boundary = None
        rendered = None
        pictures = b""
        if request.kind == "completion":
            if isinstance(request.prompt, str):
                self._refuse_hopeless(request.prompt, window, loaded)
            ids = self._completion_ids(request, loaded)
        else:
            rendered = self._render(request, loaded)
            self._refuse_hopeless(rendered.text, window, loaded)
            ids, pictures = self._seen_ids(loaded, rendered.text)
        room = resolve.room(len(ids), window, request.max_tokens)
        if not ids:
            raise Refusal(400, "empty_prompt", "The prompt is empty.", param="messages" if rendered else "prompt")
        if rendered and not request.images:
            boundary = self._boundary(request, loaded, rendered, ids)
        spec = self._text_spec(request, loaded, rendered)
        if spec.grammar:
            self._try_grammar(spec.grammar, request, loaded)
        return Prepared(
            prompt_ids=ids,
            text=spec,
            stop_ids=model.stop_ids,
            context=window,
            vocab_size=model.vocab_size,
            boundary=boundary,
            max_tokens=room,
            sampling=resolve.sampling(request, model.generation_config),
            labels=[loaded.encoder.encode_plain(label) for label in request.labels or []],
            pictures=pictures,
        )

    def count(self, request: InferenceRequest, model_dir: str) -> int:
        """Prompt tokens of a request. Nothing is refused for its length."""
        loaded = self._loaded(model_dir)
        if request.kind == "embedding":
            return sum(len(ids) for ids in self._input_ids(request, loaded))
        if request.kind == "completion":
            return len(self._completion_ids(request, loaded))
        request = resolve.with_model_default(request, loaded.tool_format)
        return len(self._seen_ids(loaded, self._render(request, loaded).text)[0])

    def _seen_ids(self, loaded: Loaded, text: str) -> tuple[list[int], bytes]:
        """Tokens of a rendered prompt, and what the picture tokens among them stand for. Here: words only."""
        return loaded.encoder.encode_rendered(text), b""

    def _loaded(self, model_dir: str) -> Loaded:
        stamp = _stamp(Path(model_dir))
        known = self._models.get(model_dir)
        if known is None or known.stamp != stamp:
            model = load(Path(model_dir))
            known = self._models[model_dir] = Loaded(model, PromptEncoder(model), stamp)
        self._models.move_to_end(model_dir)
        while len(self._models) > LOADED_MODELS:
            self._models.popitem(last=False)
        return known

    def _completion_ids(self, request: InferenceRequest, loaded: Loaded) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, list):
            self._refuse_unknown(prompt, loaded, "prompt")
            return list(prompt)
        return loaded.encoder.encode_raw(prompt or "")

    @staticmethod
    def _refuse_hopeless(text: str, window: int, loaded: Loaded) -> None:
        """Refuse a text whose beginning alone overfills the window, without encoding all of it."""
        if len(text) <= window * limits.HOPELESS_RATIO:
            return
        beginning = text[: window * limits.HOPELESS_RATIO]
        tokens = len(loaded.encoder.encode_plain(beginning))
        # Cutting a text in two changes the count by a few tokens at the cut; twice the window is beyond doubt.
        if tokens > 2 * window:
            raise resolve.too_long(tokens * len(text) // len(beginning), window, estimated=True)

    @staticmethod
    def _refuse_unknown(tokens: Sequence[int], loaded: Loaded, param: str) -> None:
        """An id beyond the table of embeddings is read from memory that is somebody else's, or nobody's."""
        for token in tokens:
            if not 0 <= token < loaded.model.vocab_size:
                message = f"{param}: token id {token} is not in the model's vocabulary (0 to {loaded.model.vocab_size - 1})."
                raise Refusal(400, "invalid_value", message, param=param)

    def _input_ids(self, request: InferenceRequest, loaded: Loaded) -> list[list[int]]:
        instructed = QUERY.format(request.instruction) if request.instruction else ""
        return [
            loaded.encoder.encode_raw(instructed + item) if isinstance(item, str) else list(item) for item in request.inputs or []
        ]

    def _embedding(self, request: InferenceRequest, loaded: Loaded, window: int) -> Prepared:
        hidden = loaded.model.config.get("hidden_size")
        if request.dimensions is not None and isinstance(hidden, int) and request.dimensions > hidden:
            message = f"dimensions: this model's vectors have {hidden} numbers; expected at most that, got {request.dimensions}."
            raise Refusal(400, "invalid_value", message, param="dimensions")
        inputs = self._input_ids(request, loaded)
        for index, ids in enumerate(inputs):
            self._refuse_unknown(ids, loaded, f"input[{index}]")
            if len(ids) > window:
                raise Refusal(
                    400,
                    "context_length_exceeded",
                    f"input[{index}] has {len(ids)} tokens; this model takes at most {window}.",
                    param="input",
                )
        return Prepared(
            prompt_ids=[], text=TextSpec(), stop_ids=[], context=window, vocab_size=loaded.model.vocab_size, inputs=inputs
        )

    def _render(self, request: InferenceRequest, loaded: Loaded) -> _Rendered:
        model, encoder = loaded.model, loaded.encoder
        offered = [] if request.tool_choice == "none" else request.tools
        source = model.templates.get("tool_use", "") if offered else ""
        source = source or model.templates.get("default", "")
        if not source:
            raise Refusal(
                400,
                "no_chat_template",
                "This model has no chat template; use the completions endpoint instead.",
                param="messages",
            )
        can = messages.UNPROBED
        if messages.uses_tools(request.messages, request.tools):
            can = messages.abilities(source, tuple(sorted(model.special.items())))
        turns, tools = messages.conversation(request.messages, offered, can)
        sealed = [_sealed_turn(turn, encoder, marks.reasoning_marks(model)) for turn in turns]
        variables = {
            "documents": None,
            **encoder.seal(resolve.template_variables(request, source)),
            **model.special,
            "tools": encoder.seal(tools),
        }
        if request.template_kwargs.get("continue_final_message") is True and sealed and sealed[-1]["role"] == "assistant":
            text = encoder.unfinished(
                sealed[-1]["content"],
                lambda content: self._rendered_text(
                    source, [*sealed[:-1], {**sealed[-1], "content": content}], {**variables, "add_generation_prompt": False}
                )[0],
            )
        else:
            text, sealed = self._rendered_text(source, sealed, {**variables, "add_generation_prompt": True})
        return _Rendered(text, source, variables, sealed, tools, can.native_tools)

    @staticmethod
    def _rendered_text(source: str, turns: list[dict[str, Any]], variables: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
        """Render; when the template itself objects, try what keeps every word of the conversation."""
        first: Refusal | None = None
        tried: list[list[dict[str, Any]]] = []
        for attempt in messages.repairs(turns):
            if attempt in tried:
                continue
            tried.append(attempt)
            try:
                return render(source, {**variables, "messages": attempt}), attempt
            except Refusal as refusal:
                first = first or refusal
                if refusal.code not in {"template_refused", "template_failed"}:
                    break
        assert first is not None
        raise first

    def _boundary(self, request: InferenceRequest, loaded: Loaded, rendered: _Rendered, ids: list[int]) -> int | None:
        """Length of the prefix that the conversation's next turn will share with this prompt.

        Found by rendering the conversation with a dummy reply and a next turn; how many tokens the primer takes is
        remembered per template mode. Best effort: a wrong answer costs speed, never correctness.
        """
        mode = (
            rendered.source,
            resolve.thinking(request),
            rendered.tools is not None,
            request.reasoning_effort,
            request.template_kwargs.get("preserve_thinking"),
            rendered.turns[-1]["role"] if rendered.turns else "",
        )
        if mode not in loaded.primers:
            loaded.primers[mode] = self._primer(loaded, rendered, ids)
        primer = loaded.primers[mode]
        return len(ids) - primer if primer is not None and primer < len(ids) else None

    @staticmethod
    def _primer(loaded: Loaded, rendered: _Rendered, ids: list[int]) -> int | None:
        # The user's next turn belongs to it: templates drop reasoning, and its marks, from all turns but the last.
        after = [{"role": "assistant", "content": _DUMMY_REPLY}, {"role": "user", "content": _DUMMY_REPLY}]
        try:
            text = render(
                rendered.source, {**rendered.variables, "messages": [*rendered.turns, *after], "add_generation_prompt": False}
            )
        except Refusal:
            return None
        probe = loaded.encoder.encode_rendered(text)
        shared = 0
        for left, right in zip(ids, probe, strict=False):
            if left != right:
                break
            shared += 1
        primer = len(ids) - shared
        return primer if 0 <= primer <= LONGEST_PRIMER else None

    @staticmethod
    def _try_grammar(compiled: str, request: InferenceRequest, loaded: Loaded) -> None:
        if loaded.grammar_tokenizer is None:
            model = loaded.model
            loaded.grammar_tokenizer = LLTokenizer(
                model.tokenizer.to_str(),
                n_vocab=max(model.vocab_size, model.tokenizer.get_vocab_size()),
                eos_token=model.stop_ids or None,
            )
        grammar.try_out(compiled, grammar.constraint_kind(request), loaded.grammar_tokenizer)

    @staticmethod
    def _text_spec(request: InferenceRequest, loaded: Loaded, rendered: _Rendered | None) -> TextSpec:
        model = loaded.model
        if rendered is None:
            return TextSpec(
                stop=request.stop,
                stop_ids=model.stop_ids,
                grammar=grammar.compile_constraint(request, None),
            )
        pair = marks.reasoning_marks(model)
        # tool_choice "none" still knows the format: calls the model makes anyway are then withheld.
        tool_format = None
        if request.tools:
            tool_format = loaded.tool_format if rendered.native_tools else FALLBACK
        opened = marks.opens_in_reasoning(rendered.text, pair)
        compiled = grammar.compile_constraint(request, tool_format)
        grammar_from: Literal["start", "reasoning", "maybe_reasoning"] = "start"
        reasoning_ids = tuple(loaded.encoder.encode_plain(mark) for mark in pair) if pair else ([], [])
        if model.channels and not resolve.forces_call(request):
            # Whatever the model thinks and comments first, the constraint is about its final words. A forced
            # call is bound from the start instead: its grammar begins with the header of the message.
            grammar_from, reasoning_ids = "reasoning", ([], loaded.encoder.encode_plain(_FINAL_HEADER))
        elif opened:
            grammar_from = "reasoning"
        elif pair and resolve.thinking(request) is not False:
            grammar_from = "maybe_reasoning"
        return TextSpec(
            stop=request.stop,
            tools=request.tools,
            tool_format=tool_format,
            reasoning=pair,
            starts_in_reasoning=opened,
            stop_ids=model.stop_ids,
            withhold_calls=request.tool_choice == "none",
            channels=model.channels,
            grammar=compiled,
            grammar_from=grammar_from if compiled else "start",
            reasoning_ids=(reasoning_ids[0], reasoning_ids[1]),
            jump=bool(compiled) and resolve.may_jump(request),
        )
