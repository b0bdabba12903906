"""The wizard's form for the next version of a dataset: filled with what the last one was made from.

Knows forms and what an order may say; what was asked before and is asked again the same way is no concern of the form.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from django.http import Http404, HttpRequest

from mlxplatform.console import dataset_filters
from mlxplatform.console.page import project_of, seen
from mlxplatform.datasets import options
from mlxplatform.datasets.models import DatasetVersion
from mlxplatform.datasets.templates.base import Template


def base_of(request: HttpRequest, template: Template) -> DatasetVersion | None:
    """The newest version of the dataset that the address says is continued, if it says so.

    Raises:
        Http404: there is none of this template in the project that the new version would belong to.
    """
    dataset = request.GET.get("resume", "")
    if not dataset:
        return None
    versions = DatasetVersion.objects.filter(
        dataset=dataset, dataset__template=template.id, dataset__preview=False, dataset__project=project_of(request)
    )
    version = seen(request, versions, "dataset__project").select_related("dataset").order_by("-number").first()
    if version is None:
        raise Http404
    return version


def form_of(version: DatasetVersion, template: Template) -> dict[str, str]:
    """What the form's controls say for an order like the version's."""
    told = options.stored(version.options)
    given = {field.name: _text(version.inputs.get(field.name)) for field in template.fields}
    given |= {"run_model": told.model, "run_rows": _text(told.rows), "run_seed": str(told.seed)}
    return given | dataset_filters.as_form(msgspec.to_builtins(told.filters))


def continued(body: dict[str, Any], version: DatasetVersion) -> dict[str, Any]:
    """The form's order as one for the next version; filters that the form does not offer stay as they were."""
    before = msgspec.to_builtins(options.stored(version.options).filters)
    filters = dataset_filters.kept(before) | body.get("filters", {})
    if isinstance(filters.get("judge"), dict):
        filters["judge"] = before.get("judge", {}) | filters["judge"]
    # Said here, an empty control means none of it rather than what was before.
    return {"model": "local", "rows": None} | body | {"resume": version.dataset_id, "filters": filters}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
