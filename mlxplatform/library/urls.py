"""Routes of the library."""

from django.urls import path

from mlxplatform.http.views import endpoint
from mlxplatform.library import views

urlpatterns = [
    path("library", endpoint(GET=views.library)),
    path("fit", endpoint(GET=views.fitting)),
    path("downloads", endpoint(GET=views.transfers)),
    path("api/hub/local", endpoint(GET=views.library)),
    path("api/hub/search", endpoint(GET=views.search)),
    path("api/hub/download", endpoint(POST=views.download)),
    path("api/library/<path:model_id>", endpoint(DELETE=views.delete)),
    path("api/gc/plan", endpoint(GET=views.gc_plan)),
    path("api/gc/execute", endpoint(POST=views.gc_execute)),
]
