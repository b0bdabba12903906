"""What a run would find to do now, counted from the ledger alone."""

from __future__ import annotations

from typing import Any

from django.db.models import F

from mlxplatform.memory.models import ChunkEntity, Fold, Vault
from mlxplatform.memory.runs import STAGES


def pending(vault: Vault) -> list[dict[str, Any]]:
    """Each stage with how much waits for it. Later stages also get what earlier ones would make."""
    folded = set(Fold.objects.filter(vault=vault).values_list("chunk_ref", "stem"))
    about = ChunkEntity.objects.filter(chunk__vault=vault).exclude(entity__stem="").values_list("chunk__ref", "entity__stem")
    counts = {
        "segment": vault.conversations.exclude(chunked=F("digest")).count(),
        "extract": vault.chunks.filter(extracted_at=None).count(),
        "create": vault.entities.filter(notable=True, stem="").count(),
        "place": sum(1 for pair in set(about) if pair[1] and pair not in folded),
        "reconcile": vault.changes.filter(kind="patch", reconciled=False, state="accepted").count(),
    }
    return [{"stage": name, "message": message, "waiting": counts.get(name)} for name, (_, message) in STAGES.items()]
