"""Routes of the wire protocols. Paths are tidied before routing, so none ends in a slash."""

from django.urls import path

from mlxplatform.api import status
from mlxplatform.api.anthropic import views as anthropic
from mlxplatform.api.openai import models
from mlxplatform.api.openai.chat import views as chat
from mlxplatform.api.openai.completions import views as completions
from mlxplatform.api.openai.embeddings import views as embeddings
from mlxplatform.api.openai.responses import views as responses

urlpatterns = [
    path("health", status.health_view),
    path("readyz", status.ready_view),
    path("stats", status.stats_view),
    path("v1", status.index_view),
    path("v1/models", models.models_list),
    path("v1/models/<path:model_id>", models.models_detail),
    path("v1/chat/completions", chat.chat_completions),
    path("v1/chat/completions/<str:completion_id>", chat.stored_completion),
    path("v1/chat/completions/<str:completion_id>/messages", chat.stored_messages),
    path("v1/completions", completions.completions),
    path("v1/embeddings", embeddings.embeddings),
    path("v1/responses", responses.responses),
    path("v1/responses/input_tokens", responses.response_count),
    path("v1/responses/<str:response_id>", responses.response_detail),
    path("v1/responses/<str:response_id>/cancel", responses.response_cancel),
    path("v1/responses/<str:response_id>/input_items", responses.response_items),
    path("v1/messages", anthropic.messages),
    path("v1/messages/count_tokens", anthropic.messages_count),
]
