"""JSON shapes of keys, usage rows and audit entries."""

from __future__ import annotations

from rest_framework import serializers

from mlxplatform.accounts.models import DEFAULT_PROJECT, ApiKey, AuditEntry, UsageDay
from mlxplatform.accounts.scopes import DEFAULT_SCOPES, SCOPES

#: What the columns hold.
_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_QUOTAS = ["requests_per_minute", "tokens_per_day", "concurrency", "storage_bytes"]


class KeySerializer(serializers.ModelSerializer[ApiKey]):
    """A key as it may be shown: never its secret."""

    class Meta:
        model = ApiKey
        fields = ["id", "name", "prefix", "project", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at", *_QUOTAS]


class NewKeySerializer(serializers.Serializer[ApiKey]):
    """What a new key is made of."""

    name = serializers.CharField(max_length=120)
    project = serializers.RegexField(r"^[a-z0-9][a-z0-9_-]{0,63}$", default=DEFAULT_PROJECT)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=list(SCOPES)), default=list(DEFAULT_SCOPES), min_length=1
    )
    expires_at = serializers.DateTimeField(default=None, allow_null=True)
    requests_per_minute = serializers.IntegerField(default=0, min_value=0, max_value=_INT32)
    tokens_per_day = serializers.IntegerField(default=0, min_value=0, max_value=_INT64)
    concurrency = serializers.IntegerField(default=0, min_value=0, max_value=_INT32)
    storage_bytes = serializers.IntegerField(default=0, min_value=0, max_value=_INT64)


class UsageSerializer(serializers.ModelSerializer[UsageDay]):
    class Meta:
        model = UsageDay
        fields = ["day", "project", "key_id", "model", "requests", "prompt_tokens", "cached_tokens", "completion_tokens"]


class UsageQuerySerializer(serializers.Serializer[UsageDay]):
    """Filters of the ledger; both days are included."""

    start = serializers.DateField(required=False)
    end = serializers.DateField(required=False)
    model = serializers.CharField(required=False)
    key_id = serializers.CharField(required=False)
    format = serializers.ChoiceField(choices=["json", "csv"], default="json")


class AuditSerializer(serializers.ModelSerializer[AuditEntry]):
    class Meta:
        model = AuditEntry
        fields = ["id", "at", "actor", "project", "action", "target", "before", "after"]
