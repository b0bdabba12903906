"""Text to token ids, such that only the template can write control tokens.

A tokenizer turns ``<|im_end|>`` into one control id wherever it stands, so text from a client could forge
a turn. Two steps prevent it without changing a single id of ordinary prompts:

1. Before rendering, every marker inside client text is broken by a *seal*, a random run of digits that no
   client can guess (:meth:`PromptEncoder.seal`). Templates may still trim, split or JSON-encode the text.
2. After rendering, unbroken markers are the template's own. The prompt is then encoded with a second
   tokenizer whose markers are renamed to unguessable names, so that what remains of the client's markers
   is plain text for every pre-tokenizer, merge table and flag the first one has.

A prompt in which no client text holds a marker, nearly all of them, takes neither step.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from workers.prepare.model import TextModel


class PromptEncoder:
    """Encodes for one model. The seal is drawn anew for each process, never shown to anybody."""

    def __init__(self, model: TextModel):
        self._model = model
        self._seal = str(10**23 + secrets.randbelow(9 * 10**23))
        self._nonce = secrets.token_hex(12)

    @cached_property
    def markers(self) -> list[str]:
        """Texts that must not be written by clients: special tokens, and other added tokens the template uses.

        Added tokens which are ordinary text (runs of spaces, HTML tags) stay usable by everybody.
        """
        templates = "\n".join(self._model.templates.values())
        found = {
            token.content
            for token in self._model.added_tokens.values()
            if token.content.strip() and (token.special or token.content in templates)
        }
        return sorted(found, key=len, reverse=True)

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        return re.compile("|".join(re.escape(marker) for marker in self.markers)) if self.markers else None

    def seal(self, value: Any, *, spared: Sequence[str] = ()) -> Any:
        """Client data with the markers in all its strings broken, except ``spared`` ones."""
        if isinstance(value, str):
            return self._seal_text(value, spared)
        if isinstance(value, dict):
            return {self.seal(key, spared=spared): self.seal(item, spared=spared) for key, item in value.items()}
        if isinstance(value, list):
            return [self.seal(item, spared=spared) for item in value]
        return value

    def _seal_text(self, text: str, spared: Sequence[str]) -> str:
        if self._pattern is None:
            return text

        def broken(match: re.Match[str]) -> str:
            return match[0] if match[0] in spared else match[0][0] + self._seal + match[0][1:]

        return self._pattern.sub(broken, text)

    def unfinished(self, content: str, render: Callable[[str], str]) -> str:
        """A rendered conversation cut right behind its last turn's content, for the model to write on."""
        end = self._seal + "0"
        text, found, _ = render(content + end).rpartition(end)
        return text if found else render(content)

    def unseal(self, text: str) -> str:
        return text.replace(self._seal, "")

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a rendered template. A doubled BOS at the start is one too many and is dropped."""
        if self._seal not in text or self._pattern is None:
            ids = self._model.tokenizer.encode(text, add_special_tokens=False).ids
        else:
            own = self._pattern.sub(lambda match: self._renamed[match[0]], text)
            ids = self._sealed_tokenizer.encode(self.unseal(own), add_special_tokens=False).ids
        return self._single_bos(ids)

    def encode_raw(self, text: str) -> list[int]:
        """Ids of a prompt given as it is (legacy completions): the caller is the template here."""
        return self._single_bos(self._model.tokenizer.encode(text, add_special_tokens=True).ids)

    def encode_plain(self, text: str) -> list[int]:
        """Ids of text without any framing."""
        return self._model.tokenizer.encode(text, add_special_tokens=False).ids

    def _single_bos(self, ids: list[int]) -> list[int]:
        bos = self._model.bos_id
        return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids

    @cached_property
    def _renamed(self) -> dict[str, str]:
        return {marker: f"<|{self._nonce}:{index}|>" for index, marker in enumerate(self.markers)}

    @cached_property
    def _sealed_tokenizer(self) -> Tokenizer:
        """The model's tokenizer with every marker renamed, in its added tokens and in its vocabulary alike."""
        spec = json.loads(self._model.tokenizer.to_str())
        names = self._renamed
        for token in spec.get("added_tokens") or []:
            token["content"] = names.get(token["content"], token["content"])
        vocab = spec["model"].get("vocab")
        if isinstance(vocab, dict):
            spec["model"]["vocab"] = {names.get(text, text): token for text, token in vocab.items()}
        elif isinstance(vocab, list):
            # Unigram: pairs of piece and score.
            spec["model"]["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
        unknown = spec["model"].get("unk_token")
        if isinstance(unknown, str):
            spec["model"]["unk_token"] = names.get(unknown, unknown)
        # Ids are all that is wanted; a post-processor would look its tokens up by their old names.
        spec["post_processor"] = None
        return Tokenizer.from_str(json.dumps(spec))
