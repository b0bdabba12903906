"""Instructions made harder or broader step by step, then answered. Evolutions that failed are dropped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from mlxplatform.datasets.filters.distinct import rouge_l
from mlxplatform.datasets.filters.rowwise import is_refusal
from mlxplatform.datasets.templates.base import (
    Ask,
    CallFailed,
    Draft,
    Drop,
    Field,
    Inputs,
    Source,
    Template,
    chat_row,
    failed,
    lines,
    system,
    user,
)
from mlxplatform.datasets.templates.parsing import itself
from mlxplatform.inference.contract import Message

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

#: What each demand makes of an instruction. Without, small models answer it or talk about it.
EXAMPLES = {
    "constraints": (
        ("Name some fruits.", "Name five fruits that grow in cold climates, in alphabetical order."),
        ("Describe a horse.", "Describe a horse in at most 60 words without using the word animal."),
    ),
    "depth": (
        ("Why is bread baked?", "Explain what happens to starch, water and yeast in a loaf of bread while it is baked."),
        ("What is a library?", "Explain how a public library decides which books to buy, keep and give away."),
    ),
    "concreteness": (
        ("Give tips for saving money.", "Give four tips for a student in a shared flat to spend less on food and heating."),
        ("Describe a journey.", "Describe a journey by night train from Vienna to Rome in January."),
    ),
    "reasoning": (
        ("How far is the Moon?", "How many days would a car at 100 km/h need for the distance to the Moon? Show the steps."),
        (
            "Which bus should I take?",
            "Bus A comes every 12 minutes and takes 20, bus B every 5 and takes 26. Which is faster?",
        ),
    ),
    "input": (
        ("Sort a list.", "Sort these cities by population, largest first: Oslo 709,000; Bergen 291,000; Turku 195,000."),
        ("Correct a text.", "Correct the mistakes in this sentence: She dont has no time too visit hers friend."),
    ),
    "breadth": (
        ("Write a poem about spring.", "Write the rules of a word game for two people who wait for a train."),
        ("Name three planets.", "Explain how sailors found their way at sea before there were maps."),
    ),
}


def asked_for(demand: str, instruction: str) -> str:
    return f"{demand} Keep it answerable and self-contained.\n\nInstruction:\n{instruction}"


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
    instruction: str | None = source.data
    try:
        for step in range(inputs["steps"]):
            if instruction is None:
                break
            row, instruction = await evolved(ask, source, step, instruction, inputs["mode"])
            made.append(row)
    except CallFailed as error:
        made.append(failed(error))
    return made


async def evolved(ask: Ask, source: Source, step: int, instruction: str, mode: str) -> tuple[Draft | Drop, str | None]:
    """One evolution with its answer, and the instruction to go on from; None where it ends."""
    way, demand = way_of(mode, source.key, step)
    said = await ask(
        f"evolve{step}",
        [
            system("You rewrite instructions for an assistant. You reply with the new instruction only."),
            *(turn for given, new in EXAMPLES[way] for turn in (user(asked_for(demand, given)), Message("assistant", new))),
            user(asked_for(demand, instruction)),
        ],
        max_tokens=INSTRUCTION_TOKENS,
    )
    new = itself(said.text, instruction)
    if len(new.split()) < 3 or is_refusal(new) or rouge_l(new, instruction) >= TOO_LIKE:
        return Drop("failed_evolution", f"{way}: {new[:120]}"), None
    answer = await ask(f"answer{step}", [user(new)], max_tokens=ANSWER_TOKENS)
    if not answer.text:
        return Drop("empty_answer", new[:120]), None
    metadata = {"seed": source.data, "step": step + 1, "way": way}
    return chat_row(("user", new), ("assistant", answer.text), metadata=metadata), new


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
