from django.urls import path

from mlxplatform.batches import anthropic_views, openai_views

urlpatterns = [
    path("v1/batches", openai_views.batch_list),
    path("v1/batches/<str:batch_id>", openai_views.batch_detail),
    path("v1/batches/<str:batch_id>/cancel", openai_views.batch_cancel),
    path("v1/messages/batches", anthropic_views.batch_list),
    path("v1/messages/batches/<str:batch_id>", anthropic_views.batch_detail),
    path("v1/messages/batches/<str:batch_id>/cancel", anthropic_views.batch_cancel),
    path("v1/messages/batches/<str:batch_id>/results", anthropic_views.batch_results),
]
