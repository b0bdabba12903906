"""Routes of the library."""

from django.urls import path

from mlxplatform.http.views import endpoint
from mlxplatform.library import choice_views, views

urlpatterns = [
    path("library", endpoint(GET=views.library)),
    path("fit", endpoint(GET=views.fitting)),
    path("downloads", endpoint(GET=views.transfers)),
    path("api/hub/local", endpoint(GET=views.library)),
    path("api/hub/search", endpoint(GET=views.search)),
    path("api/hub/download", endpoint(POST=views.download)),
    path("api/hub/foreign", endpoint(GET=choice_views.foreign)),
    path("api/hub/adopt", endpoint(POST=choice_views.adopt)),
    path("api/presets/fields", endpoint(GET=choice_views.fields)),
    path(
        "api/library/<path:model_id>/preset",
        endpoint(GET=choice_views.preset, PUT=choice_views.put_preset, DELETE=choice_views.delete_preset),
    ),
    path("api/library/<path:model_id>/default", endpoint(POST=choice_views.make_default, DELETE=choice_views.clear_default)),
    path("api/library/<path:model_id>", endpoint(DELETE=views.delete)),
    path("api/gc/plan", endpoint(GET=views.gc_plan)),
    path("api/gc/execute", endpoint(POST=views.gc_execute)),
]
