"""Routes of operations."""

from django.urls import path

from mlxplatform.operations import views

urlpatterns = [path("api/data", views.data_view), path("api/retention", views.retention_view)]
