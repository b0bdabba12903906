"""A model that sees, loaded through mlx-vlm, behind the faces that the rest of the engine knows.

:class:`Speaking` is its language half with the call of an mlx-lm model; :class:`SeeingSolo` runs one sequence at a time,
whose prompt may hold pictures. What a picture is made of comes as arrays with the order, from
:mod:`workers.vision.child`; this module decodes none. No prompt cache is kept: the same tokens stand for other pictures.

mlx-vlm runs code that a model directory brings when its configuration names some (``model_file``), so such a one is
refused here before the library sees it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from workers.engine.batch import Chooser, Row
from workers.engine.loading import CannotLoad, Loaded, as_this_machine_runs_it, read_config, reading_files
from workers.engine.solo import Alone, Prompted, Solo

#: Keys of a configuration that name Python files of the model's own.
OWN_CODE = ("model_file",)
#: Name under which what is no array (sizes of pictures, as lists) travels beside the arrays, as bytes of JSON.
LISTS = "__lists__"


def refuse_own_code(folder: Path) -> dict[str, Any]:
    """The configuration of a model that brings no code.

    Raises:
        CannotLoad: it does, or there is no configuration.
    """
    config = read_config(folder)
    if any(config.get(key) for key in OWN_CODE):
        raise CannotLoad("The model brings its own code, which is not run here.")
    return config


def load(folder: Path, dtype: str, device: str) -> Loaded:
    """Load a model with its eyes, in the dtype this machine runs best.

    Raises:
        CannotLoad: with a reason; the original error is its cause.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    config = refuse_own_code(folder)
    from mlx_vlm.utils import load_model

    with reading_files(config):
        model = load_model(folder)
    loaded = as_this_machine_runs_it(model, config, dtype, device)
    return replace(loaded, model=Speaking(loaded.model))


class Speaking:
    """The language half of a seeing model, called as mlx-lm's models are: tokens in, logits out."""

    def __init__(self, model: Any):
        self.seeing = model
        self._language = model.language_model

    @property
    def layers(self) -> Any:
        return self._language.layers

    def make_cache(self) -> list[Any]:
        from mlx_vlm.models.cache import make_prompt_cache

        return make_prompt_cache(self._language)

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        if hasattr(self._language, "_rope_deltas"):
            # Where a picture moved the positions of an earlier sequence, words alone must find none of that.
            self._language._position_ids = None
            self._language._rope_deltas = mx.zeros((inputs.shape[0], 1), dtype=mx.int32)
        return cast("mx.array", self._language(inputs, cache=cache).logits)


@dataclass
class Sight:
    """What a prompt looks like to the model: one vector a token, and what the layers must know beside them.

    ``whole``: this family attends over all of a prompt at once, so it is fed in one piece. ``following`` goes with every
    later token: where a picture moved the positions.
    """

    vectors: mx.array
    beside: dict[str, Any]
    whole: bool
    following: dict[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return int(self.vectors.shape[1])


class SeeingSolo(Solo):
    """One sequence at a time, whose prompt may hold pictures."""

    def __init__(self, model: Speaking, chooser: Chooser, *, prefill_tokens: int):
        super().__init__(model, chooser, model.make_cache, prefill_tokens=prefill_tokens)
        self._seeing = model.seeing
        self._sight: Sight | None = None

    def insert_segments(self, segments: list[list[list[int]]], *, samplers: list[Row], **more: Any) -> list[int]:
        (parts,) = segments
        tokens = [token for part in parts for token in part]
        prompt = samplers[0].prompt or len(tokens)
        # What was said already stands behind the prompt and is words, whatever its numbers.
        split = [part for part in (tokens[:prompt], tokens[prompt:]) if part]
        found = super().insert_segments([split], samplers=samplers, **more)
        self._sight = None
        return found

    def _prefill(self, run: Alone) -> Prompted:
        if self._sight is None:
            self._sight = look(self._seeing, run.segments[0], run.row.pictures, run.cache)
        if self._sight.whole:
            self._prefill_tokens = run.total
            if len(run.segments) == 1 and not run.tokens:
                self._feed(run, run.segments.pop())
                return Prompted(run.uid, (run.total, run.total), True, True)
        return super()._prefill(run)

    def _logits(self, run: Alone, tokens: list[int]) -> mx.array:
        sight, at, language = self._sight, len(run.tokens), self._seeing.language_model
        assert sight is not None
        words = mx.array([tokens])
        if at >= sight.length:
            return cast("mx.array", language(words, cache=run.cache, **sight.following).logits)
        beside = dict(sight.beside)
        if not sight.whole:
            beside["n_to_process"] = len(tokens)
        found = language(
            words, inputs_embeds=sight.vectors[:, at : at + len(tokens)], cache=run.cache, logits_to_keep=1, **beside
        )
        for name in ("cross_attention_states", "encoder_outputs"):
            if getattr(found, name, None) is not None:
                sight.following[name] = getattr(found, name)
        return cast("mx.array", found.logits)

    def remove(self, uids: list[int], return_prompt_caches: bool = False) -> dict[int, tuple[list[Any], list[int]]]:
        """Who comes back begins again: its cache is of no use without what the layers knew beside it."""
        del return_prompt_caches
        return super().remove(uids)


def look(model: Any, prompt: list[int], pictures: bytes, cache: list[Any]) -> Sight:
    """Put what is seen into the prompt."""
    from mlx_vlm.generate.common import _chunked_prefill_enabled

    tensors = unpack(pictures)
    words = mx.array([prompt])
    mask = tensors.pop("attention_mask", mx.ones_like(words))
    seen = tensors.pop("pixel_values", None)
    found = model.get_input_embeddings(words, seen, mask=mask, **tensors).to_dict()
    vectors = found.pop("inputs_embeds")
    beside = {**tensors, **{name: value for name, value in found.items() if value is not None}}
    chunks = _chunked_prefill_enabled(model, input_ids=words, inputs_embeds=vectors, prompt_cache=cache, prefill_kwargs=beside)
    mx.eval(vectors)
    following = {"rope_deltas": beside["rope_deltas"]} if "rope_deltas" in beside else {}
    return Sight(vectors, beside, not chunks, following)


def unpack(pictures: bytes) -> dict[str, Any]:
    """The arrays of a prompt's pictures, by the names the model's own processor gave them."""
    if not pictures:
        return {}
    from safetensors.numpy import load as read

    tensors: dict[str, Any] = {name: mx.array(array) for name, array in read(pictures).items()}
    lists = tensors.pop(LISTS, None)
    if lists is not None:
        tensors |= json.loads(bytes(lists.tolist()))
    return tensors
