"""BERT-type encoders (MiniLM and its family) in plain mlx: token ids in, hidden states out.

Takes the weights as published; a checkpoint with other names or another position scheme is refused while
loading, by name, instead of answering nonsense.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from workers.engine.loading import CannotLoad

#: model_type values this encoder is exact for.
FAMILIES = frozenset({"bert"})
_ACTIVATIONS = {"gelu": nn.gelu, "relu": nn.relu, "gelu_new": nn.gelu_approx, "gelu_pytorch_tanh": nn.gelu_approx}


class Encoder:
    """One loaded encoder; float32 on a CPU, as stored on Metal."""

    def __init__(self, folder: Path, config: dict[str, Any], dtype: str):
        self.config = config
        self.layers = int(config["num_hidden_layers"])
        self.heads = int(config["num_attention_heads"])
        self.hidden = int(config["hidden_size"])
        self.context = int(config["max_position_embeddings"])
        self._epsilon = float(config.get("layer_norm_eps", 1e-12))
        self._weights = _weights(folder, dtype)
        try:
            self._activation = _ACTIVATIONS[config.get("hidden_act", "gelu")]
            self._weights["embeddings.word_embeddings.weight"]
            self._weights[f"encoder.layer.{self.layers - 1}.output.dense.weight"]
        except KeyError as error:
            raise CannotLoad(f"The encoder lacks {error.args[0]}.") from None

    @property
    def weight_bytes(self) -> int:
        return sum(int(array.nbytes) for array in self._weights.values())

    def __call__(self, ids: mx.array, mask: mx.array) -> mx.array:
        """Hidden states (texts, tokens, hidden) of padded ids (texts, tokens); ``mask`` is true at real tokens."""
        texts, length = ids.shape
        width = self.hidden // self.heads
        states = self._embed(ids, length)
        attention = mask[:, None, None].astype(mx.bool_)

        def split(value: mx.array) -> mx.array:
            return value.reshape(texts, length, self.heads, width).transpose(0, 2, 1, 3)

        for layer in range(self.layers):
            name = f"encoder.layer.{layer}."
            query, key, value = (
                split(self._linear(states, f"{name}attention.self.{part}")) for part in ("query", "key", "value")
            )
            mixed = mx.fast.scaled_dot_product_attention(query, key, value, scale=width**-0.5, mask=attention)
            mixed = mixed.transpose(0, 2, 1, 3).reshape(texts, length, self.hidden)
            states = self._norm(
                states + self._linear(mixed, f"{name}attention.output.dense"), f"{name}attention.output.LayerNorm"
            )
            inner = self._activation(self._linear(states, f"{name}intermediate.dense"))
            states = self._norm(states + self._linear(inner, f"{name}output.dense"), f"{name}output.LayerNorm")
        return states

    def _embed(self, ids: mx.array, length: int) -> mx.array:
        table = "embeddings."
        words = self._weights[f"{table}word_embeddings.weight"][ids]
        places = self._weights[f"{table}position_embeddings.weight"][:length]
        kinds = self._weights[f"{table}token_type_embeddings.weight"][0]
        return self._norm(words + places + kinds, f"{table}LayerNorm")

    def _linear(self, value: mx.array, name: str) -> mx.array:
        return mx.addmm(self._weights[f"{name}.bias"], value, self._weights[f"{name}.weight"].T)

    def _norm(self, value: mx.array, name: str) -> mx.array:
        return mx.fast.layer_norm(value, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"], self._epsilon)


def _weights(folder: Path, dtype: str) -> dict[str, mx.array]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CannotLoad("The model has no weight files.")
    loaded: dict[str, mx.array] = {}
    for file in files:
        try:
            loaded.update(cast("dict[str, mx.array]", mx.load(str(file))))
        except RuntimeError as error:
            raise CannotLoad("A weight file of the model cannot be read.") from error
    out = {}
    for name, array in loaded.items():
        if not mx.issubdtype(array.dtype, mx.floating):
            continue  # position ids
        out[name.removeprefix("bert.")] = array if dtype == "native" else array.astype(getattr(mx, dtype))
    mx.eval(out)
    return out
