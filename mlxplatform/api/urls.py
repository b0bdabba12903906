"""Routes of the wire protocols. Paths are tidied before routing, so none ends in a slash."""

from django.urls import path

from mlxplatform.api import adapters, metrics, request_history, residency, schema, status
from mlxplatform.api.anthropic import views as anthropic
from mlxplatform.api.audio import views as audio
from mlxplatform.api.decisions import views as decisions
from mlxplatform.api.ollama import views as ollama
from mlxplatform.api.openai import models, unavailable
from mlxplatform.api.openai.chat import views as chat
from mlxplatform.api.openai.completions import views as completions
from mlxplatform.api.openai.conversations import views as conversations
from mlxplatform.api.openai.embeddings import views as embeddings
from mlxplatform.api.openai.responses import views as responses
from mlxplatform.api.rerank import views as rerank

urlpatterns = [
    path("health", status.health_view),
    path("livez", status.live_view),
    path("readyz", status.ready_view),
    path("stats", status.stats_view),
    path("metrics", metrics.metrics_view),
    path("v1", status.index_view),
    path("api/hosts", status.hosts_view),
    path("api/requests", request_history.requests_view),
    path("api/requests/export", request_history.export_view),
    path("api/requests/<str:request_id>", request_history.request_view),
    path("api/models/<path:model_id>/plan", residency.plan_view),
    path("api/models/<path:model_id>/pin", residency.pin_view),
    path("api/models/<path:model_id>/unpin", residency.unpin_view),
    path("api/models/<path:model_id>/load", residency.load_view),
    path("api/models/<path:model_id>/unload", residency.unload_view),
    path("api/schema", schema.schema_view),
    path("api/docs", schema.docs_view),
    path("v1/models", models.models_list),
    path("v1/models/<path:model_id>", models.models_detail),
    path("v1/adapters", adapters.adapters_view),
    path("v1/adapters/available", adapters.available_view),
    path("v1/adapters/<path:adapter_id>", adapters.adapter_view),
    path("v1/chat/completions", chat.chat_completions),
    path("v1/chat/completions/<str:completion_id>", chat.stored_completion),
    path("v1/chat/completions/<str:completion_id>/messages", chat.stored_messages),
    path("v1/completions", completions.completions),
    path("v1/embeddings", embeddings.embeddings),
    path("v1/responses", responses.responses),
    path("v1/responses/input_tokens", responses.response_count),
    path("v1/responses/compact", unavailable.compact),
    path("v1/responses/<str:response_id>", responses.response_detail),
    path("v1/responses/<str:response_id>/cancel", responses.response_cancel),
    path("v1/responses/<str:response_id>/input_items", responses.response_items),
    path("v1/conversations", conversations.conversations),
    path("v1/conversations/<str:conversation_id>", conversations.conversation),
    path("v1/conversations/<str:conversation_id>/items", conversations.conversation_items),
    path("v1/conversations/<str:conversation_id>/items/<str:item_id>", conversations.conversation_item),
    path("v1/rerank", rerank.rerank),
    path("v1/decisions", decisions.decisions),
    path("v1/systemone", decisions.system_one),
    path("v1/moderations", unavailable.moderations),
    path("v1/images/generations", unavailable.images),
    path("v1/images/edits", unavailable.images),
    path("v1/images/variations", unavailable.images),
    path("v1/audio/speech", unavailable.speech),
    path("v1/audio/transcriptions", audio.transcriptions),
    path("v1/audio/translations", audio.translations),
    path("v1/messages", anthropic.messages),
    path("v1/messages/count_tokens", anthropic.messages_count),
    path("api/chat", ollama.chat),
    path("api/generate", ollama.generate),
    path("api/embed", ollama.embed),
    path("api/embeddings", ollama.embeddings),
    path("api/tags", ollama.tags_view),
    path("api/ps", ollama.ps_view),
    path("api/show", ollama.show_view),
    path("api/version", ollama.version_view),
]
