"""REST for keys, usage and the audit log."""

from __future__ import annotations

import csv
import io

from django.http import HttpRequest, HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from mlxplatform.accounts import identity, keys
from mlxplatform.accounts.identity import Identity
from mlxplatform.accounts.models import ApiKey, AuditEntry, UsageDay
from mlxplatform.accounts.serializers import (
    AuditSerializer,
    KeySerializer,
    NewKeySerializer,
    UsageQuerySerializer,
    UsageSerializer,
)
from mlxplatform.inference.contract import Refusal
from mlxplatform.spreadsheet import inert

_OBJECT = OpenApiTypes.OBJECT
#: Most audit entries one answer carries.
_AUDIT_PAGE = 200


def _identity(request: Request) -> Identity:
    inner: HttpRequest = request._request
    return inner.identity  # type: ignore[attr-defined]


def _key(key_id: str) -> ApiKey:
    key = ApiKey.objects.filter(pk=key_id).first()
    if key is None:
        raise Refusal(404, "key_not_found", "key not found")
    return key


class Keys(APIView):
    """List keys; make one."""

    @extend_schema(summary="Keys, without their secrets", responses=_OBJECT)
    def get(self, request: Request) -> Response:
        return Response({"ok": True, "keys": KeySerializer(ApiKey.objects.all(), many=True).data})

    @extend_schema(summary="Make a key; its secret is in this answer only", request=NewKeySerializer, responses={201: _OBJECT})
    def post(self, request: Request) -> Response:
        form = NewKeySerializer(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        quota = keys.Quota(
            **{name: values[name] for name in ("requests_per_minute", "tokens_per_day", "concurrency", "storage_bytes")}
        )
        key, secret = keys.create(
            values["name"],
            project=values["project"],
            scopes=values["scopes"],
            expires_at=values["expires_at"],
            quota=quota,
            actor=_identity(request).actor,
        )
        identity.forget()
        return Response({"ok": True, "key": KeySerializer(key).data, "secret": secret}, status=201)


class KeyDetail(APIView):
    """One key: see it, revoke it."""

    @extend_schema(summary="One key", responses=_OBJECT)
    def get(self, request: Request, key_id: str) -> Response:
        return Response({"ok": True, "key": KeySerializer(_key(key_id)).data})

    @extend_schema(summary="Revoke a key", responses={200: _OBJECT})
    def delete(self, request: Request, key_id: str) -> Response:
        key = _key(key_id)
        keys.revoke(key, actor=_identity(request).actor)
        identity.forget()
        return Response({"ok": True, "key": KeySerializer(key).data})


class KeyRotation(APIView):
    """Give a key a new secret."""

    @extend_schema(summary="Give a key a new secret", request=None, responses=_OBJECT)
    def post(self, request: Request, key_id: str) -> Response:
        key = _key(key_id)
        if not key.is_active:
            raise Refusal(400, "key_inactive", "a revoked or expired key cannot be rotated")
        secret = keys.rotate(key, actor=_identity(request).actor)
        identity.forget()
        return Response({"ok": True, "key": KeySerializer(key).data, "secret": secret})


class UsageReport(APIView):
    """The ledger, as JSON or CSV; everybody but an admin sees the own project only."""

    @extend_schema(
        summary="Requests and tokens by key, model and day",
        parameters=[UsageQuerySerializer],
        responses={(200, "application/json"): _OBJECT, (200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> Response | HttpResponse:
        form = UsageQuerySerializer(data=request.query_params)
        form.is_valid(raise_exception=True)
        query = form.validated_data
        who = _identity(request)
        rows = UsageDay.objects.all() if who.is_admin else UsageDay.objects.filter(project=who.project)
        if "start" in query:
            rows = rows.filter(day__gte=query["start"])
        if "end" in query:
            rows = rows.filter(day__lte=query["end"])
        rows = rows.filter(**{name: query[name] for name in ("model", "key_id") if name in query})
        data = UsageSerializer(rows, many=True).data
        if query["format"] == "json":
            return Response({"ok": True, "usage": data})
        out = io.StringIO()
        writer = csv.DictWriter(out, fieldnames=UsageSerializer.Meta.fields)
        writer.writeheader()
        for row in data:
            writer.writerow({name: inert(value) if isinstance(value, str) else value for name, value in row.items()})
        return HttpResponse(
            out.getvalue(),
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="usage.csv"'},
        )


class Audit(APIView):
    """The newest audit entries; ``before`` pages to older ones."""

    @extend_schema(
        summary="Who did what, newest first",
        parameters=[OpenApiParameter("before", int, description="id of an entry: older ones follow")],
        responses=_OBJECT,
    )
    def get(self, request: Request) -> Response:
        entries = AuditEntry.objects.all()
        before = request.query_params.get("before")
        if before is not None:
            if not (before.isascii() and before.isdigit()) or len(before) > 18:
                raise Refusal(400, "invalid_cursor", "before must be the id of an audit entry", param="before")
            entries = entries.filter(pk__lt=int(before))
        page = list(entries.order_by("-id")[: _AUDIT_PAGE + 1])
        return Response(
            {"ok": True, "entries": AuditSerializer(page[:_AUDIT_PAGE], many=True).data, "has_more": len(page) > _AUDIT_PAGE}
        )
