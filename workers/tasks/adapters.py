"""Runners of jobs about adapters that exist: fuse, merge, export."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings

from mlxplatform import paths
from mlxplatform.files import service as files
from mlxplatform.jobs.context import JobContext
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
    with RefusalsExplained():
        chosen = [registry.choose(adapter, None) for adapter in order["adapters"]]
        folders = [one.folder for one in chosen]
    sources = [one.adapter for one in chosen]
    name = finetuning.model_name({"model": sources[0].base_model, "suffix": order["suffix"]}, ctx.job_id)
    if publication.provenance(root / output).get("job") != ctx.job_id:
        task = {
            **order,
            **machine(),
            "task": "merge",
            "job": ctx.job_id,
            "paths": [str(folder) for folder in folders],
            "output_root": str(root),
            "output": output,
            "name": name,
            "project": ctx.project,
        }
        result = Run(ctx, task, 0, "merge adapters").result()
    else:
        result = {"adapter": output}
    first = sources[0]
    Adapter.objects.update_or_create(
        id=output,
        defaults={
            "project": ctx.project,
            "name": name,
            "base_model": first.base_model,
            "base_revision": first.base_revision,
            "method": "merge",
            "fine_tune_type": first.fine_tune_type,
            "job": ctx.job_id,
            "parents": order["adapters"],
            "config": {"rank": result.get("rank"), "scale": 1.0, "weights": order["weights"]},
            "lineage": {"adapters": order["adapters"]},
            "bytes": result.get("bytes", 0),
        },
    )
    ctx.artefact("adapter", id=output, asked_as=name)
    if first.fine_tune_type in local_adapters.SERVED:
        announced.wait_until_known(ctx, name)
    return {**result, "name": name}


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
