"""A subject split into topics and subtopics by the model; questions and answers about every leaf."""

from __future__ import annotations

from collections.abc import Iterator

from mlxplatform.datasets.inputs import bad
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
from mlxplatform.datasets.templates.parsing import list_of, string_list
from mlxplatform.datasets.templates.together import together

LIST_TOKENS, ANSWER_TOKENS = 512, 600
#: Longest name of a topic, characters.
TOPIC_CHARS = 60
#: Rows of one subject: they are asked for together and saved together.
MOST_ROWS = 2_000


def check_inputs(inputs: Inputs, project: str) -> None:
    rows = inputs["branches"] ** inputs["depth"] * inputs["questions_per_leaf"]
    if rows > MOST_ROWS:
        why = f"branches to the power of depth, times questions_per_leaf, is {rows} rows a subject; at most {MOST_ROWS}"
        raise bad("inputs.questions_per_leaf", why)


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, topic in enumerate(lines(inputs["topics"]), 1):
        yield Source(str(number), topic)


async def split(ask: Ask, step: str, path: list[str], count: int) -> list[str]:
    answer = await ask(
        step,
        [
            system("You lay out a subject for teaching."),
            user(f"Subject: {' > '.join(path)}\n\nName {count} different subtopics as a JSON array of short strings."),
        ],
        max_tokens=LIST_TOKENS,
        constraint=list_of(count, TOPIC_CHARS),
    )
    return list(dict.fromkeys(string_list(answer.text)))[:count]


async def leaves(ask: Ask, inputs: Inputs, root: str) -> list[list[str]]:
    """Paths from the root to the leaves; a topic that cannot be split is a leaf itself."""
    level = [[root]]
    for depth in range(inputs["depth"]):
        parts = await together(
            split(ask, f"split{depth}.{number}", path, inputs["branches"]) for number, path in enumerate(level)
        )
        level = [
            below for path, names in zip(level, parts, strict=True) for below in ([[*path, name] for name in names] or [path])
        ]
    return level


async def cover(ask: Ask, number: int, path: list[str], count: int) -> list[Draft | Drop]:
    """Rows about one leaf."""
    try:
        asked = await ask(
            f"ask{number}",
            [
                system("You write questions a learner would ask."),
                user(f"Topic: {' > '.join(path)}\n\nWrite {count} questions about exactly this, as a JSON array of strings."),
            ],
            max_tokens=LIST_TOKENS,
            constraint=list_of(count),
        )
    except CallFailed as error:
        return [failed(error)]
    questions = string_list(asked.text)[:count]
    if not questions:
        return [Drop("no_list", " > ".join(path))]
    return await together(row(ask, f"answer{number}.{index}", question, path) for index, question in enumerate(questions))


async def row(ask: Ask, step: str, question: str, path: list[str]) -> Draft | Drop:
    try:
        answer = await ask(step, [user(question)], max_tokens=ANSWER_TOKENS)
    except CallFailed as error:
        return failed(error)
    if not answer.text:
        return Drop("empty_answer", question[:120])
    return chat_row(("user", question), ("assistant", answer.text), metadata={"topic": path})


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    paths = await leaves(ask, inputs, source.data)
    covered = await together(cover(ask, number, path, inputs["questions_per_leaf"]) for number, path in enumerate(paths))
    return [made for rows in covered for made in rows]


TEMPLATE = Template(
    id="topic_tree",
    label="Topic tree",
    description="Splits subjects into subtopics, level by level, and covers every leaf with questions and answers.",
    output_format="messages",
    fields=(
        Field("topics", "textarea", "Subjects, one a line", required=True),
        Field("depth", "number", "Levels below a subject", default=2, minimum=1, maximum=4),
        Field("branches", "number", "Subtopics of each topic", default=3, minimum=1, maximum=10),
        Field("questions_per_leaf", "number", "Questions per leaf", default=2, minimum=1, maximum=20),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
    check_inputs=check_inputs,
)
