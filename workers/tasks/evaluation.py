"""Runner of an evaluation: losses in a trainer child, then answers and verdicts as rows of the engine.

The answers come the way clients get them, through the running engine with the adapter mounted by its name;
finished calls are in SQL, so an attempt that died asks nothing twice. The outcome is kept on the adapter.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from mlxplatform import paths
from mlxplatform.inference.contract import Constraint, InferenceRequest, Message, Sampling
from mlxplatform.jobs.context import JobContext, JobFailed
from mlxplatform.rows.contract import RowRequest
from mlxplatform.rows.pool import RowPool
from mlxplatform.training import data, evaluation, finetuning, registry, rows
from mlxplatform.training.evaluation import Question
from mlxplatform.training.models import Adapter
from mlxplatform.training.registry import Chosen
from workers.tasks.trainer_child import Run
from workers.tasks.training import RefusalsExplained, base_model, machine, preflight

#: Answers kept with the report, of those asked for.
_SHOWN = 20


def evaluate(ctx: JobContext) -> dict[str, Any]:
    """Measure what was ordered; answers the figures and keeps them on the adapter."""
    order = ctx.config
    with RefusalsExplained():
        chosen = registry.choose(order["adapter"], None)
        # After its first attempt the work has begun: it goes on with what was deleted since.
        train, valid = data.paths(order["data"], begun=ctx.attempt > 1, param="" if "dataset" in order["data"] else "file")
    path = valid if order["part"] == "valid" else train
    if path is None:
        raise JobFailed("no_held_out_rows", "The rows to measure on are not there any more.")
    measured: dict[str, Any] = {}
    if "loss" in order["measures"]:
        measured["loss"] = _losses(ctx, chosen, path)
    if {"exact_match", "judge"} & set(order["measures"]):
        measured.update(asyncio.run(_answers(ctx, chosen, _questions(ctx, chosen.adapter, path))))
    _keep(chosen, {"job_id": ctx.job_id, "at": timezone.now().isoformat(), **measured})
    shown = chosen.adapter.name if chosen.files is None else chosen.asked_as
    return {"adapter": chosen.id, "name": shown, "base_model": chosen.adapter.base_model, **measured}


def _keep(chosen: Chosen, found: dict[str, Any]) -> None:
    """On the adapter: the newest evaluation of its result, and of each earlier step that was measured."""
    with transaction.atomic():
        kept = Adapter.objects.select_for_update().get(pk=chosen.adapter.pk)
        if chosen.earlier_step:
            by_step = {**kept.metrics.get("evaluation_by_step", {}), str(chosen.earlier_step): found}
            kept.metrics = {**kept.metrics, "evaluation_by_step": by_step}
        else:
            kept.metrics = {**kept.metrics, "evaluation": found}
        kept.save(update_fields=["metrics"])


def _losses(ctx: JobContext, chosen: Chosen, path: Path) -> dict[str, Any]:
    order, adapter = ctx.config, chosen.adapter
    model = base_model(order["model"], order["revision"])
    needed = finetuning.estimate_bytes(model, {**_counting(adapter), "batch_size": 1, "fine_tune_type": "lora", "method": "sft"})
    preflight(needed)
    task = {
        **machine(),
        **_counting(adapter),
        "task": "evaluate",
        "job": ctx.job_id,
        "source": str(model.path),
        "adapter_path": str(chosen.files.path) if chosen.files is not None else "",
        "tuned_path": str(paths.models_dir(settings.HOME) / adapter.model) if adapter.model else "",
        "rows": str(path),
        "formats": evaluation.ROW_FORMATS,
        "held_fraction": order["held_fraction"],
        "max_examples": order["max_examples"],
    }
    return Run(ctx, task, needed, f"evaluate {chosen.asked_as}").result()


def _counting(adapter: Adapter) -> dict[str, Any]:
    return {**evaluation.defaults(adapter), "grad_checkpoint": True}


def _questions(ctx: JobContext, adapter: Adapter, path: Path) -> list[Question]:
    order, found = ctx.config, list(rows.read(path, evaluation.ROW_FORMATS))
    if order["held_fraction"]:
        found = rows.split(found, order["held_fraction"], evaluation.defaults(adapter)["seed"])[1]
    asked = evaluation.questions(found, order["max_examples"])
    if not asked:
        raise JobFailed("no_questions", "No row is a question with an answer; only loss can be measured on these rows.")
    return asked


async def _answers(ctx: JobContext, chosen: Chosen, asked: list[Question]) -> dict[str, Any]:
    """Ask base and fine-tuned model the same, greedily, and compare."""
    order, adapter, tuned_name = ctx.config, chosen.adapter, chosen.asked_as
    ctx.stage("answers", 0.5, f"Asking both models {len(asked)} questions.")
    async with RowPool(ctx) as pool:

        async def ask(question: Question, who: str, model: str) -> str:
            return await _call(pool, adapter.project, question.ordinal, who, model, question.asked, order["max_tokens"])

        async def one(question: Question) -> dict[str, Any]:
            base, tuned = await asyncio.gather(ask(question, "base", order["model"]), ask(question, "tuned", tuned_name))
            row: dict[str, Any] = {"question": question.asked[-1].content, "expected": question.expected}
            row |= {"base": base, "tuned": tuned}
            if "exact_match" in order["measures"]:
                row |= {f"{who}_matches": evaluation.matches(row[who], question.expected) for who in ("base", "tuned")}
            if "judge" in order["measures"]:
                verdicts = await asyncio.gather(
                    _judge(pool, adapter.project, question, "first-base", order["judge_model"], base, tuned),
                    _judge(pool, adapter.project, question, "first-tuned", order["judge_model"], tuned, base),
                )
                row["winner"] = "tie" if base == tuned else evaluation.winner(*verdicts)
            return row

        compared = await asyncio.gather(*(one(question) for question in asked))
    result: dict[str, Any] = {"examples": compared[:_SHOWN], "questions": len(compared)}
    if "exact_match" in order["measures"]:
        result["exact_match"] = {who: sum(row[f"{who}_matches"] for row in compared) / len(compared) for who in ("base", "tuned")}
    if "judge" in order["measures"]:
        wins = {who: sum(row["winner"] == who for row in compared) for who in ("base", "tuned", "tie")}
        result["judge"] = {"model": order["judge_model"], **wins}
    return result


async def _judge(pool: RowPool, project: str, question: Question, step: str, model: str, first: str, second: str) -> str:
    said = evaluation.judge_prompt(question, first, second)
    return await _call(pool, project, question.ordinal, step, model, said, 8, Constraint("choice", list(evaluation.VERDICTS)))


async def _call(
    pool: RowPool,
    project: str,
    ordinal: int,
    step: str,
    model: str,
    said: list[Message],
    limit: int,
    constraint: Constraint | None = None,
) -> str:
    """One durable call, on behalf of the adapter's project: no other may ask it.

    Raises:
        JobFailed: the engine refused it.
    """
    key = f"{ordinal}:{step}"
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big") >> 1
    request = InferenceRequest(
        id="",
        model=model,
        priority="row",
        messages=said,
        template_kwargs={"enable_thinking": False},
        sampling=Sampling(temperature=0.0, seed=seed),
        max_tokens=limit,
        constraint=constraint,
        project=project,
    )
    result = await pool.call(RowRequest(key, ordinal, request))
    if result.output is None:
        why = result.error.message if result.error else "it gave no answer"
        raise JobFailed("model_refused", f"{model} could not be asked: {why}")
    return result.output.text.strip()
