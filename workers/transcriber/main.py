"""A child that writes down one recording and ends: ``python -m workers.transcriber.main MODEL_DIR FILE ORDER``.

ORDER is the JSON of the contract's Audio. It prints ``{"heard": seconds}`` once it could read the recording, and then one
object: ``{"refused": message, "param": …}`` or ``{"language", "duration", "segments", "words"}``. It ends when its input is
closed, which is when its parent does. Its memory goes back to the system with it, and what a library
does to a process for one recording is gone with the process as well.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import types
from pathlib import Path
from typing import Any

from workers.engine import platform


class Refused(Exception):
    """Something the client can change; ``param`` names it."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message, self.param = message, param


def transcribe(model_dir: Path, file: Path, order: dict[str, Any]) -> dict[str, Any]:
    device = platform.prepare(os.environ.get("MLXPLATFORM_BLAS", ""))
    from workers.transcriber.sound import RATE, BadSound, load

    try:
        samples = load(file)
    except BadSound as bad:
        raise Refused(str(bad), "file") from None

    _say({"heard": len(samples) / RATE})
    if not order.get("words"):
        _leave_out_word_times()
    import mlx_whisper
    from mlx_whisper.load_models import load_model
    from mlx_whisper.tokenizer import LANGUAGES

    language = order.get("language")
    if not load_model(str(model_dir)).is_multilingual:
        if order["task"] == "translate":
            raise Refused("The model knows English only, so it cannot translate.", "model")
        language = "en"
    options: dict[str, Any] = {} if order.get("temperature") is None else {"temperature": order["temperature"]}
    result = mlx_whisper.transcribe(
        samples,
        path_or_hf_repo=str(model_dir),
        task=order["task"],
        language=language,
        initial_prompt=order.get("prompt"),
        word_timestamps=bool(order.get("words")),
        fp16=device.device == "metal",
        **options,
    )
    segments = result["segments"]
    return {
        "language": LANGUAGES.get(result["language"], result["language"]),
        "duration": round(len(samples) / RATE, 3),
        "segments": [_segment(number, segment) for number, segment in enumerate(segments)],
        "words": [_word(word) for segment in segments for word in segment.get("words", ())],
    }


def _leave_out_word_times() -> None:
    """Spare the import of a compiler and of most of SciPy, which only the times of single words need: four fifths of the
    start of this process."""
    module: Any = types.ModuleType("mlx_whisper.timing")
    module.add_word_timestamps = None
    sys.modules["mlx_whisper.timing"] = module


def _segment(number: int, segment: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: _finite(segment[name]) for name in ("avg_logprob", "compression_ratio", "no_speech_prob", "temperature")}
    return {
        "id": number,
        "seek": int(segment["seek"]),
        "start": _finite(segment["start"]),
        "end": _finite(segment["end"]),
        "text": segment["text"],
        "tokens": [int(token) for token in segment["tokens"]],
        **numbers,
    }


def _word(word: dict[str, Any]) -> dict[str, Any]:
    return {"word": word["word"].strip(), "start": _finite(word["start"]), "end": _finite(word["end"])}


def _finite(value: Any) -> float:
    """A number JSON can hold."""
    number = float(value)
    return round(number, 4) if math.isfinite(number) else 0.0


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _end_with_input() -> None:
    # Not through sys.stdin, whose lock this thread would hold while the interpreter ends.
    while os.read(0, 4096):
        pass
    os._exit(0)


def main() -> None:
    threading.Thread(target=_end_with_input, daemon=True).start()
    model_dir, file, order = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    try:
        answer = transcribe(model_dir, file, order)
    except Refused as refused:
        answer = {"refused": refused.message, "param": refused.param}
    _say(answer)


if __name__ == "__main__":
    main()
