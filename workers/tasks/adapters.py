"""Runners of jobs about adapters that exist: fuse, merge, export."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings

from mlxplatform import paths
from mlxplatform.files import service as files
from mlxplatform.jobs.context import JobContext, JobFailed
from mlxplatform.library import announced, local_adapters, names, publication
from mlxplatform.training import finetuning, registry
from mlxplatform.training.models import Adapter
from workers.tasks.trainer_child import Run
from workers.tasks.training import RefusalsExplained, base_model, machine, preflight

#: Memory of one weight while a whole model is exported: float32, and the float16 that is written.
_EXPORT_BYTES = 6.5
#: Bytes of an exported file read at once.
_PIECE = 1 << 20


def fuse(ctx: JobContext) -> dict[str, Any]:
    """Make a model of the library out of a base and an adapter."""
    order, models = ctx.config, paths.models_dir(settings.HOME)
    if publication.provenance(models / order["output"]).get("job") == ctx.job_id:
        announced.wait_until_known(ctx, order["output"])
        return {"model": order["output"], "base_model": order["model"], "adapter": order["adapter"]}
    model = base_model(order["model"], order["revision"])
    with RefusalsExplained():
        names.check(order["output"], "output")
        names.reserve(order["output"], ctx.job_id, "output")
        folder = registry.choose(order["adapter"], None).folder
    needed = int(model.bytes * 2.2)
    preflight(needed)
    task = {**order, **machine(), "task": "fuse", "job": ctx.job_id, "source": str(model.path), "models": str(models)}
    result = Run(ctx, {**task, "adapter_path": str(folder)}, needed, f"fuse {model.id}").result()
    ctx.artefact("model", id=result["model"])
    announced.wait_until_known(ctx, result["model"])
    return result


def merge(ctx: JobContext) -> dict[str, Any]:
    """Make one adapter out of several."""
    order = ctx.config
    root, output = paths.adapters_dir(settings.HOME), finetuning.adapter_id(ctx.job_id)
    stats: dict[str, Any] = {}
    if publication.provenance(root / output).get("job") != ctx.job_id:
        with RefusalsExplained():
            folders = [registry.choose(adapter, None).folder for adapter in order["adapters"]]
        base = local_adapters.read(folders[0])
        task = {
            **order,
            **machine(),
            "task": "merge",
            "job": ctx.job_id,
            "paths": [str(folder) for folder in folders],
            "output_root": str(root),
            "output": output,
            "name": finetuning.model_name({"model": base.base_model if base else "", "suffix": order["suffix"]}, ctx.job_id),
            "project": ctx.project,
        }
        stats = {"stats": Run(ctx, task, 0, "merge adapters").result()["stats"]}
    # As it lies there, whether this attempt made it or one that died: what it was made of may be deleted by now.
    made = local_adapters.find(output, settings.HOME)
    if made is None:
        raise JobFailed("adapter_incomplete", "The merged adapter is not there any more.")
    Adapter.objects.update_or_create(
        id=output,
        defaults={
            "project": ctx.project,
            "name": made.name,
            "base_model": made.base_model,
            "base_revision": made.base_revision,
            "method": "merge",
            "fine_tune_type": made.fine_tune_type,
            "job": ctx.job_id,
            "parents": order["adapters"],
            "config": {"rank": made.rank, "scale": made.scale, "weights": order["weights"]},
            "lineage": {"adapters": order["adapters"]},
            "bytes": made.bytes,
            "created_by": ctx.created_by,
        },
    )
    ctx.artefact("adapter", id=output, asked_as=made.name)
    if made.fine_tune_type in local_adapters.SERVED:
        announced.wait_until_known(ctx, made.name)
    return {"adapter": output, "rank": made.rank, "bytes": made.bytes, **stats, "name": made.name}


def export(ctx: JobContext) -> dict[str, Any]:
    """Write an adapter, alone or with its base, in a format others read, as files to download."""
    order = ctx.config
    with RefusalsExplained():
        chosen = registry.choose(order["adapter"], None)
    work = paths.training_dir(settings.HOME) / ctx.job_id
    task = {
        **machine(),
        "task": "export",
        "job": ctx.job_id,
        "format": order["format"],
        "paths": [str(chosen.files.path)] if chosen.files is not None else [],
        "work": str(work),
        "name": chosen.asked_as,
    }
    needed = 0
    if order["format"] == "gguf":
        model = base_model(order["model"], order["revision"])
        needed = int(model.parameters * _EXPORT_BYTES)
        preflight(needed)
        task["source"] = str(model.path)
    try:
        result = Run(ctx, task, needed, "export an adapter").result()
        kept = [
            files.store(_pieces(work / name), name, "fine-tune-results", project=ctx.project, created_by=ctx.created_by)
            for name in result["files"]
        ]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    shown = [
        {"id": file.id, "filename": file.filename, "bytes": file.bytes, "url": f"/v1/files/{file.id}/content"} for file in kept
    ]
    manifest = {"version": 1, "base_model": chosen.adapter.base_model, "adapter": chosen.id, "method": chosen.adapter.method}
    manifest |= {"format": order["format"]}
    return {"files": shown, "manifest": manifest}


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece
