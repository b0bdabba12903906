"""Several answers to a prompt, graded by the model; the best and the worst become a preference pair."""

from __future__ import annotations

from collections.abc import Iterator

from mlxplatform.datasets.templates.base import Ask, Draft, Drop, Field, Inputs, Source, Template, lines, system, user
from mlxplatform.datasets.templates.parsing import score
from mlxplatform.datasets.templates.together import together
from mlxplatform.inference.contract import Constraint

ANSWER_TOKENS, GRADE_TOKENS = 600, 40
LOWEST, HIGHEST = 1, 10
#: A small model that is asked for a number tells a story; held to one it grades.
A_GRADE = Constraint("choice", [str(grade) for grade in range(LOWEST, HIGHEST + 1)])


def sources(inputs: Inputs) -> Iterator[Source | Drop]:
    for number, prompt in enumerate(lines(inputs["prompts"]), 1):
        yield Source(str(number), prompt)


async def graded_answer(ask: Ask, number: int, prompt: str, rubric: str) -> tuple[float, int, str] | None:
    """(grade, minus its number, answer), or None when there is no answer or no grade."""
    # Hotter from answer to answer, so that they differ in quality as well as in wording.
    answer = await ask(f"answer{number}", [user(prompt)], max_tokens=ANSWER_TOKENS, temperature=min(0.4 + 0.3 * number, 1.5))
    if not answer.text:
        return None
    verdict = await ask(
        f"grade{number}",
        [
            system(f"You grade answers from {LOWEST} to {HIGHEST} by this rubric: {rubric}."),
            user(f"Request:\n{prompt}\n\nAnswer:\n{answer.text}\n\nReply with the grade only."),
        ],
        max_tokens=GRADE_TOKENS,
        temperature=0.0,
        constraint=A_GRADE,
    )
    grade = score(verdict.text, LOWEST, HIGHEST)
    return None if grade is None else (grade, -number, answer.text)


async def build(source: Source, inputs: Inputs, ask: Ask) -> list[Draft | Drop]:
    prompt = source.data
    answers = await together(graded_answer(ask, number, prompt, inputs["rubric"]) for number in range(inputs["answers"]))
    graded = sorted(answer for answer in answers if answer is not None)
    if len(graded) < 2:
        return [Drop("too_few_grades", f"{len(graded)} of {inputs['answers']} answers could be graded")]
    worst, best = graded[0], graded[-1]
    if best[0] - worst[0] < inputs["min_gap"] or best[2] == worst[2]:
        return [Drop("no_preference", f"grades from {worst[0]:g} to {best[0]:g}")]
    metadata = {"chosen_grade": best[0], "rejected_grade": worst[0], "answers": len(graded)}
    return [Draft({"prompt": prompt, "chosen": best[2], "rejected": worst[2], "metadata": metadata})]


TEMPLATE = Template(
    id="preference_pairs",
    label="Preference pairs by a judge",
    description="Answers each prompt several times, grades the answers and pairs the best with the worst.",
    output_format="dpo",
    fields=(
        Field("prompts", "textarea", "Prompts, one a line", required=True),
        Field("answers", "number", "Answers per prompt", default=3, minimum=2, maximum=10),
        Field("min_gap", "number", "Smallest difference of grades", default=1, minimum=1, maximum=9),
        Field("rubric", "text", "Rubric", default="helpful, correct, complete and clear"),
    ),
    sources=sources,
    build=build,
    needs_llm=True,
    repeatable=True,
)
