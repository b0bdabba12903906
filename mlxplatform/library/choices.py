"""What people chose for a model: values for what requests leave open, a pin, and which model answers by default.

Kept in SQL, read by every host; a host that hears of a change reads at once, the others within seconds.
"""

from __future__ import annotations

from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, sync_client
from mlxplatform.http.fields import invalid, read
from mlxplatform.inference.hub import control
from mlxplatform.inference.models import Host
from mlxplatform.inference.placement import TRAINED_PREFIX, model_not_found
from mlxplatform.library import local_adapters, local_models
from mlxplatform.library.local_models import LocalModel
from mlxplatform.library.models import ModelChoice
from mlxplatform.library.presets import FIELDS, KINDS, Choices

log = structlog.get_logger(__name__)


def everything() -> Choices:
    """All choices, in one read."""
    rows = list(ModelChoice.objects.all())
    return Choices(
        {row.model: row.preset for row in rows if row.preset},
        frozenset(row.model for row in rows if row.pinned),
        {row.default_for: row.model for row in rows if row.default_for},
    )


def of(model: str) -> ModelChoice:
    """What was chosen for a model; an unsaved row when nothing was."""
    return ModelChoice.objects.filter(pk=model).first() or ModelChoice(model=model)


def set_preset(model: str, body: dict[str, Any]) -> ModelChoice:
    """Replace a model's preset; null and absent fields are left to the model.

    Raises:
        Refusal: 404 there is no such model, 400 a value is wrong.
    """
    local = known(model)
    order = read(body, FIELDS)
    if order["context"] is not None and local.context and order["context"] > local.context:
        raise invalid("context", f"context must be at most {local.context}, the model's own window.")
    return _changed(model, preset={name: value for name, value in order.items() if value is not None})


def set_pinned(model: str, pinned: bool) -> ModelChoice:
    return _changed(model, pinned=pinned)


def set_default(model: str) -> ModelChoice:
    """Let this model answer requests of its kind that name none.

    Raises:
        Refusal: 404 there is no such model, 400 it cannot be asked like that.
    """
    if model.startswith(TRAINED_PREFIX):
        raise invalid("model", "A fine-tuned name cannot be the default; fuse it into a model first.")
    local = known(model)
    if local.kind not in KINDS:
        raise invalid("model", f"A model for {local.kind} cannot be the default; one for {' or '.join(KINDS)} can.")
    if local.obstacle:
        raise invalid("model", f"{local.id} cannot answer: {local.obstacle}.")
    with transaction.atomic():
        ModelChoice.objects.filter(default_for=local.kind).exclude(pk=model).update(default_for="")
        return _changed(model, default_for=local.kind)


def clear_default(model: str) -> ModelChoice:
    return _changed(model, default_for="")


def known(model: str) -> LocalModel:
    """The model that a name stands for, a fine-tuned name's base included.

    Raises:
        Refusal: 404.
    """
    tuned = local_adapters.find_name(model, settings.HOME)
    local = local_models.find(tuned.base_model if tuned else model, settings.HOME)
    if local is None:
        raise model_not_found(model)
    return local


def _changed(model: str, **values: Any) -> ModelChoice:
    with transaction.atomic():
        row, _ = ModelChoice.objects.update_or_create(pk=model, defaults=values)
        transaction.on_commit(tell_hosts)
    return row


def tell_hosts() -> None:
    """Ask every host to read the choices again; one that does not hear it reads them within seconds."""
    try:
        for host in Host.objects.values_list("name", flat=True):
            sync_client().rpush(queues.control_key(host), control("choices"))
    except BROKER_ERRORS as error:
        log.warning("hosts not told of a choice", error=str(error))
