"""Starting a run from another adapter's weights: which one may be that, and where it lies. Optimizer and schedule start anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.conf import settings

from mlxplatform.http.fields import invalid
from mlxplatform.inference.contract import Refusal
from mlxplatform.inference.placement import model_not_found
from mlxplatform.library import local_adapters
from mlxplatform.library.local_adapters import LocalAdapter
from mlxplatform.library.local_models import LocalModel
from mlxplatform.training.models import Adapter

#: What both runs must agree on for the weights to find their places and to have the effect there that they had, and what
#: runs of before there was such a field did.
_SHARED = {
    "fine_tune_type": None,
    "rank": None,
    "rank_scaling": "constant",
    "num_layers": None,
    "target_modules": None,
    "scale": None,
    "rs_lora": False,
}


def check(order: dict[str, Any], model: LocalModel, project: str | None) -> str:
    """The id of the adapter an order starts from.

    Raises:
        Refusal: 404 there is none, 400 it was made otherwise than this run would be.
    """
    local = _local(order["warm_start_adapter"])
    adapter = _registered(local, project) if local is not None else None
    if local is None or adapter is None:
        raise Refusal(404, "adapter_not_found", "There is no such adapter.", param="warm_start_adapter")
    if adapter.method == "merge":
        raise invalid("warm_start_adapter", "A merged adapter cannot be started from; start from one of those it was made of.")
    if (adapter.base_model, adapter.base_revision) != (model.id, model.revision):
        raise invalid("warm_start_adapter", f"That adapter was made for {adapter.base_model}, as it was then.")
    for name, before in _SHARED.items():
        theirs = adapter.config.get(name, before)
        if theirs != order[name]:
            raise invalid(name, f"{name} must be {json.dumps(theirs)} to start from that adapter.")
    return local.id


def continued(name: str, project: str | None) -> dict[str, Any]:
    """The fields of an order that goes on from a fine-tuned name: its base, and what both runs must agree on.

    Raises:
        Refusal: 404.
    """
    local = _local(name)
    adapter = _registered(local, project) if local is not None else None
    if local is None or adapter is None:
        raise model_not_found(name)
    shared = {key: adapter.config[key] for key in _SHARED if adapter.config.get(key) is not None}
    return {**shared, "model": adapter.base_model, "warm_start_adapter": local.id}


def _local(wanted: str) -> LocalAdapter | None:
    """The adapter, or checkpoint of one, with this id or name."""
    by_name = wanted.startswith(local_adapters.NAME_PREFIX)
    return (local_adapters.find_name if by_name else local_adapters.find)(wanted, settings.HOME)


def _registered(local: LocalAdapter, project: str | None) -> Adapter | None:
    found = Adapter.objects.filter(pk=local.parent or local.id, model="")
    return (found if project is None else found.filter(project=project)).first()


def folder(adapter_id: str | None) -> Path | None:
    """Where its files are; None when the order starts from nothing, or they are gone."""
    local = local_adapters.find(adapter_id, settings.HOME) if adapter_id else None
    return local.path if local else None
