"""``manage.py datasets`` against the running platform, from the order to the file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from mlxplatform.console import terminal
from tests.system.stack import Stack

pytestmark = pytest.mark.stack


@pytest.fixture
def told(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs the command within this process, which starts no interpreter each time; what it writes is the answer."""
    monkeypatch.setattr(terminal, "address", lambda: stack.base_url)

    def run(*words: str) -> str:
        out = io.StringIO()
        call_command("datasets", *words, stdout=out, stderr=out)
        return out.getvalue()

    return run


def test_a_dataset_is_made_and_taken_away_in_the_terminal(stack: Stack, told: Callable[..., str], tmp_path: Path) -> None:
    assert "pairs_text" in told("templates", "sft_qa_pairs")
    assert "rag_qa" in told("templates")
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("Q: a\nA: b\n\nQ: c\nA: d")
    made = told("run", "sft_qa_pairs", f"pairs_text=@{pairs}", "--name", "typed", "--tag", "mine", "--filter", "min_chars=2")
    assert "1 train and 1 validation rows" in made
    version = made.split()[-1]
    assert version.startswith("ds_") and version.endswith("@1")
    listed = told("list", "--tag", "mine", "--q", "typed")
    assert version.removesuffix("@1") in listed and "sft_qa_pairs" in listed
    again = told("run", "sft_qa_pairs", "--resume", version.removesuffix("@1"))
    assert again.split()[-1] == version.replace("@1", "@2")
    tried = told("run", "sft_qa_pairs", f"pairs_text=@{pairs}", "--preview", "1")
    assert "accepted" in tried and '"content": "a"' in tried and "all of it: 2 rows" in tried

    rows = tmp_path / "rows.jsonl"
    assert f"{rows}: " in told("export", version, str(rows))
    whole = rows.read_text()
    assert [json.loads(line)["messages"][0]["content"] for line in whole.splitlines()] == ["a", "c"]
    with pytest.raises(CommandError, match="--force"):
        told("export", version, str(rows))
    assert stack.manage("datasets", "export", version, "-", "--split", "valid").stdout == whole.splitlines(True)[1]
    columns = tmp_path / "own.csv"
    columns.write_text("frage,antwort\nq,a\nq,a\n")
    back = told("import", str(columns), "--distinct", "--column", "user=frage", "--column", "assistant=antwort")
    assert "1 train and 0 validation rows; dropped 1 duplicate" in back
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.csv", "pairs.txt", "rows.jsonl"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "nope"), "there is no template"),
        (("run", "sft_qa_pairs"), "pairs_text is required"),
        (("run", "sft_qa_pairs", "pairs_text"), "NAME=VALUE"),
        (("run", "sft_qa_pairs", "pairs_text=@/nowhere/x"), "no such file"),
        (("run", "sft_qa_pairs", "pairs_text=Q: a"), "no_pair"),
        (("run", "sft_qa_pairs", "pairs_text=Q", "--filter", "mood=1"), "mood is not a filter"),
        (("import", "/nowhere/x.jsonl"), "no such file"),
        (("export", "ds_none"), "dataset not found"),
        (("export", "../../v1/models"), "There is no"),
        (("templates", "nope"), "there is no template"),
    ],
)
def test_a_refused_dataset_is_one_sentence(told: Callable[..., str], words: tuple[str, ...], said: str) -> None:
    with pytest.raises(CommandError) as refused:
        told(*words)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_cannot_be_imported_is_not_kept(stack: Stack, told: Callable[..., str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    before = {file["id"] for file in stack.http.get("/v1/files?limit=1000").json()["data"]}
    with pytest.raises(CommandError, match="near_duplicates"):
        told("import", str(bad), "--near-duplicates", "9")
    assert {file["id"] for file in stack.http.get("/v1/files?limit=1000").json()["data"]} == before
    with pytest.raises(CommandError, match="line 1"):
        told("import", str(bad))
