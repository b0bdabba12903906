"""Instructions made harder or broader step by step, then answered. Evolutions that failed are dropped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from mlxplatform.datasets.filters.distinct import rouge_l
from mlxplatform.datasets.filters.rowwise import is_refusal
from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, chat_row, lines, system, user

INSTRUCTION_TOKENS, ANSWER_TOKENS = 300, 700
#: An evolution this like its parent changed nothing.
TOO_LIKE = 0.95

DEEPEN = {
    "constraints": "Add one or two further requirements or constraints.",
    "depth": "Make it ask for more depth on the subject.",
    "concreteness": "Replace general notions by concrete ones.",
    "reasoning": "Make it need several steps of reasoning.",
    "input": "Give it data to work on, such as a table, a text or code.",
}
WIDEN = {"breadth": "Write a quite different instruction from the same field, rarer but equally hard."}


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, seed in enumerate(lines(inputs["seeds"]), 1):
        yield Source(str(number), seed)


def way_of(mode: str, key: str, step: int) -> tuple[str, str]:
    """The kind of change for one step: fixed by the source, so that a resumed run asks the same."""
    ways = list({"deepen": DEEPEN, "widen": WIDEN, "both": {**DEEPEN, **WIDEN}}[mode].items())
    digest = hashlib.blake2b(f"{key}/{step}".encode(), digest_size=2).digest()
    return ways[int.from_bytes(digest, "big") % len(ways)]


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    made: list[Draft | Drop] = []
    instruction = source.data
    for step in range(inputs["steps"]):
        way, demand = way_of(inputs["mode"], source.key, step)
        evolved = await ask(
            f"evolve{step}",
            [
                system("You rewrite instructions for an assistant. You reply with the new instruction only."),
                user(f"{demand} Keep it answerable and self-contained.\n\nInstruction:\n{instruction}"),
            ],
            max_tokens=INSTRUCTION_TOKENS,
        )
        new = evolved.text.strip().strip('"')
        if len(new.split()) < 3 or is_refusal(new) or rouge_l(new, instruction) >= TOO_LIKE:
            made.append(Drop("failed_evolution", f"{way}: {new[:120]}"))
            break
        answer = await ask(f"answer{step}", [user(new)], max_tokens=ANSWER_TOKENS)
        if not answer.text:
            made.append(Drop("empty_answer", new[:120]))
            break
        metadata = {"seed": source.data, "step": step + 1, "way": way}
        made.append(chat_row(("user", new), ("assistant", answer.text), metadata=metadata))
        instruction = new
    return made


TEMPLATE = Template(
    id="evol_instruct",
    label="Evol-Instruct",
    description="Evolves your instructions in depth or breadth, answers each evolution and drops the failed ones.",
    output_format="messages",
    fields=(
        Field("seeds", "textarea", "Seed instructions, one a line", required=True),
        Field("steps", "number", "Evolutions in a row", default=2, minimum=1, maximum=10),
        Field("mode", "select", "Direction", default="both", choices=("both", "deepen", "widen")),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
)
