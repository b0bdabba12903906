"""The lint steps of our own find what they are for: secrets by their shape, packages that nobody pinned."""

from __future__ import annotations

import importlib.util
import secrets
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def step(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WORD = secrets.token_hex(32)


@pytest.mark.parametrize(
    "text",
    [
        "sk-mlxp-" + secrets.token_urlsafe(32),
        "OPENAI_API_KEY=sk-proj-" + WORD,
        "hf_" + WORD[:34],
        "ghp_" + WORD[:36],
        "AKIA" + "ABCDEFGHIJKLMNOP",
        "-----BEGIN " + "RSA PRIVATE KEY-----",
        "eyJ" + WORD[:20] + ".eyJ" + WORD[:20] + "." + WORD[:20],
        "postgres://me:" + WORD[:12] + "@db.internal/x",
    ],
)
def test_a_secret_is_found_with_its_line(text: str) -> None:
    found = step("find_secrets").findings(f"first\nvalue = '{text}'\n")
    assert [line for line, _ in found] == [2]


@pytest.mark.parametrize(
    "text", ["sk-mlxp-…", "sha256=" + WORD, "postgres://u:p@localhost/x", "https://example.org/a:b@c", "api_key='any'"]
)
def test_what_only_looks_odd_is_left_alone(text: str) -> None:
    assert step("find_secrets").findings(text) == []


def test_this_repository_holds_none() -> None:
    done = subprocess.run([sys.executable, ".ci/find_secrets.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_pins_are_read_by_normal_names() -> None:
    pins = step("dependencies").pinned()
    assert pins["django"] == {"5.2.19"}
    assert len(pins["django-unfold"]) == 2, "one for each Python"
    assert "psycopg" in pins
