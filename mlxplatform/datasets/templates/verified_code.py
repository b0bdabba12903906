"""Code whose own assertions hold when run in a sandbox. Without a sandbox the template does not run at all."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mlxplatform.datasets import sandbox
from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, chat_row, lines, system, user
from mlxplatform.datasets.templates.parsing import fenced_code
from mlxplatform.inference.contract import Message

TOKENS, TEMPERATURE, MIN_CHARS = 1200, 0.2, 10
#: Characters of an error that are kept.
ERROR_CHARS = 400
ASKED = "Write the function and three assert statements that test it, in one fenced code block."
#: Small models follow a pattern better than a description.
EXAMPLE = """```python
def double(n):
    return 2 * n

assert double(0) == 0
assert double(3) == 6
assert double(-5) == -10
```"""


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, spec in enumerate(lines(inputs["specs"]), 1):
        yield Source(str(number), spec)


def asserts_something(code: str) -> bool:
    """Whether running it can show anything: assertions that are run, and calls of what they test. Broken code may run.

    An assertion inside a function that nothing calls passes whatever the function does.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    run = list(_run_at_once(tree))
    called = {node.func.id for node in run if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in called]
    run += [inner for function in functions for inner in ast.walk(function)]
    return all(any(isinstance(node, kind) for node in run) for kind in (ast.Assert, ast.Call))


def _run_at_once(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below that runs when the code is run, so nothing in functions and classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield child
            yield from _run_at_once(child)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    language = inputs["language"]
    said = await ask(
        "code",
        [
            system(f"You write correct, self-contained {language}."),
            user(f"Write a function double(n) that returns twice n.\n\n{ASKED}"),
            Message("assistant", EXAMPLE),
            user(f"{source.data}\n\n{ASKED}"),
        ],
        max_tokens=TOKENS,
        temperature=TEMPERATURE,
    )
    found = fenced_code(said.raw)
    code = (found[1] if found else said.text).strip()
    if len(code) < MIN_CHARS:
        return [Drop("no_code", said.text[:120])]
    if not asserts_something(code):
        return [Drop("no_assertions", code[:120])]
    verdict = await sandbox.verify(code)
    if verdict.outcome != "verified" and not (verdict.outcome == "unverified" and inputs["keep_unverified"] == "yes"):
        return [Drop(f"code_{verdict.outcome}", f"{verdict.reason} {verdict.error}".strip()[:ERROR_CHARS])]
    metadata = {"verified": verdict.outcome == "verified", "language": language, "verify_error": verdict.error[:ERROR_CHARS]}
    return [chat_row(("user", source.data), ("assistant", f"```{language}\n{code}\n```"), metadata=metadata)]


TEMPLATE = Template(
    id="verified_code",
    label="Verified code",
    description="Asks for a function with assertions, runs it in a sandbox and keeps what passes.",
    output_format="messages",
    fields=(
        Field("specs", "textarea", "What to write, one specification a line", required=True),
        Field("language", "select", "Language", default="python", choices=("python",)),
        Field("keep_unverified", "select", "Keep rows the sandbox could not decide", default="no", choices=("no", "yes")),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
    unavailable=sandbox.why_unavailable,
)
