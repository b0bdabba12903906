"""Routes of keys, usage and audit."""

from django.urls import path

from mlxplatform.accounts import views

urlpatterns = [
    path("api/keys", views.Keys.as_view()),
    path("api/keys/<str:key_id>", views.KeyDetail.as_view()),
    path("api/keys/<str:key_id>/rotate", views.KeyRotation.as_view()),
    path("api/usage", views.UsageReport.as_view()),
    path("api/audit", views.Audit.as_view()),
]
