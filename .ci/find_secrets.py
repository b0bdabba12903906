"""Looks for secrets in every file git knows: keys of known services, private keys, and our own.

A fixed list of shapes, so that it needs no network, no baseline and two seconds. Entropy is not judged: that finds more
checksums than secrets. A line that must keep such a shape says ``not-a-secret``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SHAPES = {
    "a key of this platform": r"sk-mlxp-[A-Za-z0-9_-]{40,}",
    "an OpenAI or Anthropic key": r"sk-(?:proj-|ant-|svcacct-)?[A-Za-z0-9]{20,}[A-Za-z0-9_-]{12,}",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})",
    "an AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a Google key": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "a Slack token": r"\bxox[abposr]-[A-Za-z0-9-]{20,}",
    "a PyPI token": r"\bpypi-AgE[A-Za-z0-9_-]{50,}",
    "a private key": r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----",
    "a signed web token": r"\beyJ[A-Za-z0-9_-]{15,}\.eyJ[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]{15,}",
    "a password in an address": r"\b[a-z][a-z0-9+]*://[^\s/:@'\"{}$<>]+:[^\s/:@'\"{}$<>]{6,}@(?!localhost|127\.|example)",
}
ALLOWED = "not-a-secret"
_ANY = re.compile("|".join(f"(?P<s{number}>{shape})" for number, shape in enumerate(SHAPES.values())))
#: Files larger than this are data, bytes.
_MOST = 2_000_000


def findings(text: str) -> list[tuple[int, str]]:
    """Line numbers with what was found there."""
    names = list(SHAPES)
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _ANY.search(line)
        if match and ALLOWED not in line:
            found.append((number, names[int((match.lastgroup or "s0")[1:])]))
    return found


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True, text=True).stdout.split("\0")
    bad = 0
    for name in filter(None, listed):
        path = Path(name)
        if not path.is_file() or path.stat().st_size > _MOST:
            continue
        for line, what in findings(path.read_text(errors="replace")):
            print(f"{name}:{line}: this looks like {what}")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
