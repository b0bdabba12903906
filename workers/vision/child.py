"""The preparation process of models that see: ``python -m workers.vision.child``.

As :mod:`workers.prepare.child`, with the model's own picture processor (through mlx-vlm) behind the rendered prompt: it says
how many tokens a picture takes and makes the arrays that the engine looks at. Words keep going through our own encoder, so
a client's text forges no picture and no turn. Works on the CPU only, one call at a time, and may be killed at any moment.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from mlxplatform.inference.contract import Image, Refusal
from workers.engine.loading import CannotLoad
from workers.prepare import child
from workers.prepare.preparation import Loaded, Preparation
from workers.prepare.protocol import Call, Reply

log = structlog.get_logger(__name__)

#: Kinds of picture that are read, as Pillow calls them.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
#: Pixels of one picture; a phone's camera makes 12 to 50 million, and each takes 3 bytes here before it is scaled down.
MOST_PIXELS = 64_000_000
#: Bytes of the arrays of one prompt. They wait in memory with the request, and go to the engine in one message.
MOST_ARRAY_BYTES = 128 * 1024 * 1024
#: Address space of this process (bytes): MLX maps more than it uses.
ADDRESS_SPACE = 16 * 1024**3
#: Processors kept loaded.
LOADED_PROCESSORS = 2


class Words:
    """A tokenizer for a picture processor, whose words go through our encoder. Everything else is the model's own."""

    def __init__(self, own: Any, loaded: Loaded) -> None:
        self.__dict__.update(_own=own, _loaded=loaded)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own, name, value)

    def __len__(self) -> int:
        return len(self._own)

    def encode(self, text: str, **options: Any) -> list[int]:
        del options
        ids: list[int] = self._loaded.encoder.encode_rendered(text)
        return ids

    def __call__(self, text: Any = None, **options: Any) -> Any:
        from transformers import BatchEncoding

        del options
        rows = [self.encode(one) for one in ([text] if isinstance(text, str) else text)]
        return BatchEncoding({"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]})


class Seeing(Preparation):
    """Prepares requests with pictures for the models it is pointed at."""

    def __init__(self) -> None:
        super().__init__()
        self._processors: dict[int, tuple[Loaded, Any]] = {}
        self._pictures: list[Any] = []
        self._first = Image()

    def answer(self, call: Call) -> Reply:
        """What a call comes to."""
        asked = call.request.images
        try:
            self._pictures = [decoded(raw, image.param) for raw, image in zip(call.pictures, asked, strict=True)]
            self._first = asked[0] if asked else Image()
            return child.answer(self, call)
        except Refusal as refusal:
            return Reply(refusal=refusal.failed())
        finally:
            self._pictures = []

    def _seen_ids(self, loaded: Loaded, text: str) -> tuple[list[int], bytes]:
        if not self._pictures:
            return super()._seen_ids(loaded, text)
        processor = self._processor(loaded)
        from mlx_vlm.models.base import BaseImageProcessor
        from mlx_vlm.utils import prepare_inputs

        if isinstance(getattr(processor, "image_processor", None), BaseImageProcessor):
            raise Refusal(501, "unsupported_execution", "Models of this family cannot be shown pictures here.", param="model")
        try:
            made = dict(prepare_inputs(processor, images=self._pictures, prompts=text))
        except Exception as error:  # whatever a processor raises, it could not bring these pictures into this prompt
            log.warning("vision.not_prepared", reason=str(error)[:300])
            message = "The model cannot take these pictures at these places in the conversation."
            raise Refusal(400, "unsupported_content", message, param=self._first.param) from None
        ids = [int(token) for token in made.pop("input_ids").tolist()[0]]
        return ids, packed(made, self._first.param)

    def _processor(self, loaded: Loaded) -> Any:
        known = self._processors.get(id(loaded))
        if known is None:
            processor = load_processor(loaded.model.directory)
            processor.tokenizer = Words(processor.tokenizer, loaded)
            while len(self._processors) >= LOADED_PROCESSORS:
                self._processors.pop(next(iter(self._processors)))
            known = self._processors[id(loaded)] = (loaded, processor)  # holding it keeps its id its own
        return known[1]


def load_processor(folder: Path) -> Any:
    """The picture processor of a model directory; no code of the directory's own is run.

    Raises:
        Refusal: 502, with a reason.
    """
    import mlx.core as mx

    mx.set_default_device(mx.cpu)  # the GPU is whoever holds the lease
    from mlx_vlm import utils

    from workers.engine.vision import refuse_own_code

    try:
        config = refuse_own_code(folder)
        utils.get_model_and_args(config)  # importing the family is what makes its processor known
        return utils.load_processor(folder, add_detokenizer=False, trust_remote_code=False)
    except CannotLoad as error:
        raise Refusal(502, "model_load_failed", str(error)) from None
    except Exception as error:  # any defect of its files, in whatever class
        log.error("vision.no_processor", reason=repr(error)[:300])
        raise Refusal(502, "model_load_failed", "The model's picture processor cannot be loaded.") from None


def decoded(raw: bytes, param: str) -> Any:
    """A picture as pixels, upright, without transparency.

    Raises:
        Refusal: 400 naming the part.
    """
    from PIL import Image as Pictures
    from PIL import ImageOps

    Pictures.MAX_IMAGE_PIXELS = None  # the bound below is ours, and a refusal
    try:
        picture = Pictures.open(io.BytesIO(raw), formats=FORMATS)
        if picture.width * picture.height > MOST_PIXELS:
            message = f"The picture has {picture.width} x {picture.height} pixels; at most {MOST_PIXELS} are taken."
            raise Refusal(400, "image_too_large", message, param=param)
        upright = ImageOps.exif_transpose(picture)
        if upright.has_transparency_data:
            shown = upright.convert("RGBA")
            white = Pictures.new("RGBA", shown.size, "white")
            white.alpha_composite(shown)
            return white.convert("RGB")
        return upright.convert("RGB")
    except (OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError, TypeError, OverflowError):
        message = f"The picture cannot be read: it is damaged, or none of {', '.join(FORMATS)}."
        raise Refusal(400, "invalid_image", message, param=param) from None


def packed(made: Mapping[str, Any], param: str) -> bytes:
    """Arrays by name, as one piece; lists beside them.

    Raises:
        Refusal: more than is carried.
    """
    import mlx.core as mx
    import numpy as np
    from safetensors.numpy import save

    from workers.engine.vision import LISTS

    arrays: dict[str, Any] = {}
    lists: dict[str, Any] = {}
    for name, value in made.items():
        if isinstance(value, mx.array):
            arrays[name] = np.array(value.astype(mx.float32) if value.dtype == mx.bfloat16 else value)
        elif isinstance(value, np.ndarray):
            arrays[name] = value
        elif value is not None:
            lists[name] = value
    if sum(array.nbytes for array in arrays.values()) > MOST_ARRAY_BYTES:
        message = "The pictures are too many or too large for one request. Send fewer, or smaller ones."
        raise Refusal(400, "image_too_large", message, param=param)
    if lists:
        arrays[LISTS] = np.frombuffer(json.dumps(lists).encode(), dtype=np.uint8)
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        child.serve(Seeing, Seeing.answer, space=ADDRESS_SPACE)
    except BrokenPipeError:
        sys.exit(0)
