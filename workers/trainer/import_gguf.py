"""Child process: one GGUF file becomes one published model directory.

    python -m workers.trainer.import_gguf FILE --models DIR --id ID [--dtype auto] [--source TEXT] [--license TEXT]

``auto`` keeps packed weights on Metal, where 4-bit kernels are fast, and unpacks to float32 on a CPU, where
they are not (7 against 24 tokens/s). Says what it does as NDJSON on stdout; running it again for an id
that is there changes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from mlxplatform.library import gguf_header, publication
from workers import guard
from workers.engine import platform
from workers.trainer import report

DTYPES = ("auto", "packed", "float32", "bfloat16", "float16")


def convert(file: Path, folder: Path, dtype: str) -> dict[str, Any]:
    """Write every file of the model directory into ``folder``; answers its config."""
    import mlx.core as mx

    from workers.trainer import gguf, gguf_tokenizer

    tensors, meta = gguf.read(file)
    tokenizer = gguf_tokenizer.build(meta)
    report.stage("convert", 0.3)
    weights, quantization = gguf.weights(tensors, meta, dtype)
    config = gguf.config(meta, tied="lm_head.weight" not in weights)
    config["torch_dtype"] = "float16" if dtype == "packed" else dtype
    if quantization:
        config["quantization"] = config["quantization_config"] = quantization
    report.stage("write", 0.6)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    ids = gguf.special_ids(meta)
    tokens = meta["tokenizer.ggml.tokens"]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[meta.get("tokenizer.ggml.unknown_token_id", ids["bos_token_id"])],
        "add_bos_token": bool(meta.get("tokenizer.ggml.add_bos_token", False)),
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": meta.get("tokenizer.chat_template"),
    }
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, value in (("config", config), ("generation_config", ids), ("tokenizer_config", settings)):
        (folder / f"{name}.json").write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return config


def run(file: Path, models: Path, model_id: str, dtype: str, facts: dict[str, str]) -> None:
    """Import and publish, or do nothing when the id is there."""
    if (models / model_id).exists():
        report.done(id=model_id, existed=True)
        return
    if obstacle := gguf_header.read(file).obstacle():
        raise gguf_header.NotGGUF(obstacle)
    on = platform.prepare()
    if dtype == "auto":
        dtype = "packed" if on.device == "metal" else "float32"
    report.stage("read", 0.0)
    with publication.private_directory(models) as folder:
        config = convert(file, folder, dtype)
        publication.write_provenance(folder, kind="gguf-import", file=file.name, dtype=dtype, **facts)
        try:
            publication.publish(folder, models, model_id)
        except publication.NameTaken:
            report.done(id=model_id, existed=True)
            return
    report.done(id=model_id, existed=False, architecture=config["model_type"], dtype=dtype)


def main() -> int:
    guard.end_with_parent()
    parser = argparse.ArgumentParser(prog="import_gguf")
    parser.add_argument("file", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--dtype", choices=DTYPES, default="auto")
    parser.add_argument("--source", default="")
    parser.add_argument("--license", default="")
    options = parser.parse_args()
    if not publication.is_model_id(options.id):
        return report.failed("bad_name", "That is not a model name: use letters, digits, '.', '_' and '-'.")
    if not options.file.is_file():
        return report.failed("no_file", "The GGUF file is not there.")
    facts = {name: value for name, value in (("source", options.source), ("license", options.license)) if value}
    try:
        run(options.file, options.models, options.id, options.dtype, facts)
    except (gguf_header.NotGGUF, ValueError) as error:  # UnsupportedGGUF and UnsupportedTokenizer carry a reason for people
        return report.failed("unsupported_gguf", f"The GGUF file cannot be imported: {error}.")
    except KeyError as error:
        return report.failed("unsupported_gguf", f"The GGUF file cannot be imported: its metadata lacks {error}.")
    except (IndexError, TypeError, AttributeError, ArithmeticError):  # of another kind than others have there, or out of range
        return report.failed(
            "unsupported_gguf", "The GGUF file cannot be imported: what its metadata says does not fit together."
        )
    except OSError as error:
        return report.failed("cannot_write", f"The model cannot be written: {error.strerror or 'input/output error'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
