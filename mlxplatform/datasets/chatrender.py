"""A model's chat template rendered once, in a process of its own that can be ended.

A model comes from anywhere, and its template may loop without end or fill the memory: that costs this process, never
the worker that started it. Reads ``{"template", "messages"}`` from standard input as JSON, writes the text likewise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

#: Seconds by the clock and by the processor, and bytes of address space.
CLOCK_SECONDS, PROCESSOR_SECONDS, MEMORY_BYTES = 15, 5, 1024**3
#: Longest template and longest text looked at, characters.
LONGEST = 200_000


def rendered(template: str, messages: list[dict[str, str]]) -> str | None:
    """The text; None when the template cannot be rendered within its bounds."""
    if len(template) > LONGEST:
        return None
    order = json.dumps({"template": template, "messages": messages})
    command = [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {sys.path!r}\nfrom {__name__} import main; main()"]
    try:
        done = subprocess.run(command, input=order, capture_output=True, text=True, timeout=CLOCK_SECONDS, check=True)
        text: Any = json.loads(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError):
        return None
    return text if isinstance(text, str) and len(text) <= LONGEST else None


def main() -> None:
    import resource

    from jinja2.sandbox import ImmutableSandboxedEnvironment

    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
    if sys.platform == "linux":  # macOS knows the limit and keeps none
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    order = json.load(sys.stdin)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(order["template"]).render(
        messages=order["messages"], add_generation_prompt=False, bos_token="", eos_token="", tools=None
    )
    json.dump(text, sys.stdout)
