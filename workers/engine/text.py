"""The text layer: emitted token ids of one answer to events.

Stages, in this order: bytes to characters; tool markup set aside; stop strings; reasoning apart from
content. Every stage holds back what could still turn out to belong to a mark, and nothing more, so that
joined events are the same however the text was cut into tokens. Pure and incremental: pushing the same ids
into a fresh layer rebuilds the same state, which is how an answer survives its engine.

It knows no mlx and no clock. It never raises for what a model wrote.
"""

from __future__ import annotations

import secrets
from enum import Enum, auto

from tokenizers import Tokenizer

from mlxplatform.inference.contract import Event, FinishReason, Reasoning, Text, TokenLogprob, ToolCall
from workers.engine import sound_text, tool_parsers
from workers.engine.detokenize import Detokenizer, TokenBytes, token_bytes
from workers.prepare.protocol import TextSpec

#: Tokens that divide an answer into messages on channels (gpt-oss).
CHANNEL_MARKS = frozenset({"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"})


class Mode(Enum):
    CONTENT = auto()
    REASONING = auto()
    #: Inside a tool call's markup.
    CALL = auto()
    #: Between or after tool calls: text is kept until the calls are known to be good.
    AFTER_CALL = auto()


#: Characters of a mark whose beginnings are looked up in a set. All beginnings of a stop string of 100,000 characters
#: would take gigabytes, so longer ones are compared in place; marks of that length are rare.
SET_OF_BEGINNINGS = 64


class Marks:
    """Texts to look for, and which endings of a text could still become one of them. Costs memory linear in the texts."""

    def __init__(self, texts: list[str]):
        self._texts = texts
        self._beginnings = {text[:size] for text in texts for size in range(1, min(len(text), SET_OF_BEGINNINGS + 1))}
        self._long = [text for text in texts if len(text) > SET_OF_BEGINNINGS + 1]
        self._longest = max((len(text) for text in texts), default=1) - 1

    def find(self, text: str) -> tuple[int, str] | None:
        """The match that ends first (as if the text came a character at a time), the longest of those."""
        best: tuple[int, int, str] | None = None
        for mark in self._texts:
            at = text.find(mark)
            if at >= 0 and (best is None or (at + len(mark), at) < best[:2]):
                best = (at + len(mark), at, mark)
        return (best[1], best[2]) if best else None

    def held(self, text: str) -> int:
        """Length of the longest ending that may be the beginning of a mark."""
        for size in range(min(self._longest, len(text)), 0, -1):
            ending = text[-size:]
            if size <= SET_OF_BEGINNINGS:
                if ending in self._beginnings:
                    return size
            elif any(len(mark) > size and mark.startswith(ending) for mark in self._long):
                return size
        return 0


class TextLayer:
    """One answer's text. Not thread-safe; one owner."""

    def __init__(self, tokenizer: Tokenizer | TokenBytes, spec: TextSpec):
        self._table = tokenizer if isinstance(tokenizer, TokenBytes) else token_bytes(tokenizer)
        self._spec = spec
        self._detokenizer = Detokenizer(self._table)
        self._hidden = frozenset(spec.stop_ids)
        self._family = tool_parsers.family(spec.tool_format or tool_parsers.FALLBACK) if spec.tools else None
        self._stops = [stop for stop in spec.stop if stop]
        self._mode = Mode.REASONING if spec.reasoning and spec.starts_in_reasoning else Mode.CONTENT
        starts = list(self._family.starts) if self._family else []
        bare = list(self._family.bare) if self._family else []
        self._starts = frozenset([*starts, *bare])
        self._bare = frozenset(bare)
        opening = [spec.reasoning[0]] if spec.reasoning else []
        self._marks = {
            # Reasoning opens only before the first word: the same mark later on is somebody's literal text.
            (Mode.CONTENT, False): Marks([*self._stops, *starts, *bare, *opening]),
            (Mode.CONTENT, True): Marks([*self._stops, *starts]),
            (Mode.REASONING, False): Marks([*self._stops, *([spec.reasoning[1]] if spec.reasoning else [])]),
            (Mode.CALL, False): Marks([self._family.end] if self._family and self._family.end else []),
            (Mode.AFTER_CALL, False): Marks([*self._stops, *starts]),
        }
        self._shown_marks = {*starts, *(spec.reasoning or ())}
        if self._family and self._family.end:
            self._shown_marks.add(self._family.end)
        #: Text not yet given out because it may belong to a mark.
        self._held = ""
        #: White space not yet given out because a mark after it would swallow it.
        self._gap = ""
        self._spoke = False
        self._thought = False
        self._logprobs: list[TokenLogprob] = []
        #: Everything from the first tool mark on, as the model wrote it.
        self._markup = ""
        self._calls: list[tuple[str, str]] = []
        self._block = ""
        self._calls_spoiled = False
        self._stopped: str | None = None
        #: The header of the present message, None inside its body and for models without channels.
        self._header: str | None = "" if spec.channels else None
        #: Tokens that belonged to reasoning, for usage.
        self.reasoning_tokens = 0

    def push(self, token: int, logprob: TokenLogprob | None = None) -> tuple[list[Event], str | None]:
        """Events that became certain with this token, and the stop string it completed, if any.

        After a stop string the answer is over: later tokens are ignored.
        """
        if self._stopped is not None or token in self._hidden:
            return [], self._stopped
        if self._mode is Mode.REASONING:
            self.reasoning_tokens += 1
        if logprob is not None:
            self._logprobs.append(logprob)
        if self._spec.channels and self._table.added.get(token) in CHANNEL_MARKS:
            events: list[Event] = []
            self._switch_channel(self._table.added[token], events)
            return _joined(events), self._stopped
        if token in self._table.special and self._mode is not Mode.CALL and self._table.added[token] not in self._shown_marks:
            return [], None
        text = self._detokenizer.push(token)
        if not text:
            return [], None
        if self._header is not None:
            self._header += text
            return [], None
        events = []
        self._held += text
        self._advance(events)
        return _joined(events), self._stopped

    def finish(self, reason: FinishReason) -> tuple[list[Event], FinishReason]:
        """Give out what was held back. ``reason`` is stop or length; the true one comes back."""
        events: list[Event] = []
        if self._stopped is None:
            held, self._held = self._held, ""
            if self._mode in (Mode.CALL, Mode.AFTER_CALL):
                self._markup += held
                if self._mode is Mode.CALL:
                    self._block += held
                    self._end_block(cut=reason == "length")
            else:
                self._give(held, events)
        called = self._end_calls(events)
        if self._mode is Mode.CONTENT:
            # White space that no mark swallowed was content after all, unless it is all there was.
            if self._gap and self._spoke:
                events.append(Text(self._gap))
            self._gap = ""
        if self._logprobs and not called:
            events.append(Reasoning("", self._logprobs) if self._mode is Mode.REASONING else Text("", self._logprobs))
            self._logprobs = []
        if called:
            return _joined(events), "tool_calls"
        return _joined(events), "stop" if self._stopped is not None else reason

    def _switch_channel(self, mark: str, events: list[Event]) -> None:
        """Harmony's messages: a header says which channel the body is on. A mark makes everything held certain."""
        if self._header is None:
            self._give(self._held, events)
            self._held = ""
        if mark == "<|message|>":
            header, self._header = self._header or "", None
            called = tool_parsers.harmony.recipient(header)
            if called is not None and self._family is not None:
                self._markup += header + mark
                self._block = header + mark
                self._mode = Mode.CALL
            elif "analysis" in header:
                self._mode = Mode.REASONING
            else:
                self._mode = Mode.AFTER_CALL if self._markup else Mode.CONTENT
        elif mark in ("<|channel|>", "<|constrain|>"):
            self._header = (self._header or "") + " "
        else:
            if self._mode is Mode.CALL:
                self._end_block(cut=False)
            self._gap = ""
            self._mode = Mode.AFTER_CALL if self._markup else Mode.CONTENT
            self._header = ""

    def _advance(self, events: list[Event]) -> None:
        """Consume the held text as far as it is certain."""
        while self._held and self._stopped is None:
            marks = self._marks[self._mode, self._spoke and self._mode is Mode.CONTENT]
            found = marks.find(self._held)
            if found is None:
                keep = marks.held(self._held)
                certain, self._held = (self._held[:-keep], self._held[-keep:]) if keep else (self._held, "")
                self._give(certain, events)
                return
            at, mark = found
            if mark not in self._stops and self._mode is Mode.CONTENT and mark not in self._starts and self._held[:at].strip():
                # A reasoning mark behind the first words: literal text. Give the words and look again.
                self._give(self._held[:at], events)
                self._held = self._held[at:]
                continue
            before, self._held = self._held[:at], self._held[at + len(mark) :]
            self._give(before, events)
            self._cross(mark, events)

    def _cross(self, mark: str, events: list[Event]) -> None:
        """Step over a mark."""
        if mark in self._stops and self._mode is not Mode.CALL:
            self._stopped = mark
            self._held = ""
        elif self._mode is Mode.REASONING:
            self._gap = ""
            self._mode = Mode.CONTENT
        elif self._mode is Mode.CALL:
            self._markup += mark
            self._end_block(cut=False)
            self._mode = Mode.AFTER_CALL
            if self._calls_spoiled:
                self._mode = Mode.CONTENT
                self._release_markup(events)
        elif mark in self._starts:
            if self._mode is Mode.CONTENT:
                self._markup = self._gap
                self._gap = ""
            self._markup += mark
            self._block = mark if mark in self._bare else ""
            self._mode = Mode.CALL
        else:
            self._gap = ""
            self._mode = Mode.REASONING

    def _give(self, text: str, events: list[Event]) -> None:
        """Text that is certain, in the present mode."""
        if not text:
            return
        if self._mode is Mode.CALL:
            self._markup += text
            self._block += text
        elif self._mode is Mode.AFTER_CALL:
            self._markup += text
        elif self._mode is Mode.REASONING:
            text = self._gap + text if self._thought else text.lstrip()
            kept = text.rstrip()
            self._gap = text[len(kept) :] if kept or self._thought else ""
            if kept:
                self._thought = True
                events.append(Reasoning(kept, self._take_logprobs()))
        else:
            self._give_content(text, events)

    def _give_content(self, text: str, events: list[Event]) -> None:
        text = self._gap + text
        self._gap = ""
        if not self._spoke and (self._spec.reasoning or self._family):
            if not text.strip():
                self._gap = text
                return
            if self._thought or self._spec.starts_in_reasoning:
                text = text.lstrip()
        if self._family:
            kept = text.rstrip()
            self._gap = text[len(kept) :]
            text = kept
        if text:
            self._spoke = True
            events.append(Text(text, self._take_logprobs()))

    def _take_logprobs(self) -> list[TokenLogprob]:
        taken, self._logprobs = self._logprobs, []
        return taken

    def _end_block(self, *, cut: bool) -> None:
        """Parse one call's markup; one bad block spoils them all."""
        assert self._family is not None
        block, self._block = self._block, ""
        try:
            if cut and self._family.end is not None:
                raise ValueError("cut off")
            parsed = self._family.parse(block, self._spec.tools)
            known = {tool.name for tool in self._spec.tools}
            if not parsed or any(name not in known for name, _ in parsed):
                raise ValueError("unknown tool")
            calls = [(name, sound_text.dumps(arguments)) for name, arguments in parsed]
        except (ValueError, TypeError, KeyError, RecursionError):
            self._calls_spoiled = True
            return
        self._calls += calls

    def _end_calls(self, events: list[Event]) -> bool:
        """Give out the calls, or the markup as the content it turned out to be. True when calls were made."""
        if not self._markup:
            return False
        if self._calls_spoiled or not self._calls:
            self._mode = Mode.CONTENT
            self._release_markup(events)
            return False
        self._logprobs = []
        if self._spec.withhold_calls:
            return False
        for name, arguments in self._calls:
            events.append(ToolCall(f"call_{secrets.token_hex(12)}", name, arguments))
        return True

    def _release_markup(self, events: list[Event]) -> None:
        text, self._markup, self._calls, self._calls_spoiled = self._markup, "", [], False
        if self._spec.withhold_calls and not text.lstrip().startswith(tuple(self._bare)):
            # No markup for a client that asked for no calls, good or bad. Bare JSON may be an answer, though.
            return
        self._spoke = True
        events.append(Text(text, self._take_logprobs()))


def _joined(events: list[Event]) -> list[Event]:
    """Neighbouring events of one kind as one."""
    if len(events) < 2:
        return events
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Text) and isinstance(last, Text):
            out[-1] = Text(last.text + event.text, last.logprobs + event.logprobs)
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            out[-1] = Reasoning(last.text + event.text, last.logprobs + event.logprobs)
        else:
            out.append(event)
    return out
