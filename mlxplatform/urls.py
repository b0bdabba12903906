"""Every route of the web process. No trailing slashes on API paths; unknown paths answer in their dialect."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from mlxplatform.operations.admin_views import upkeep

urlpatterns = [
    path("", include("mlxplatform.api.urls")),
    path("", include("mlxplatform.jobs.urls")),
    path("", include("mlxplatform.files.urls")),
    path("", include("mlxplatform.batches.urls")),
    path("", include("mlxplatform.webhooks.urls")),
    path("", include("mlxplatform.datasets.urls")),
    path("", include("mlxplatform.library.urls")),
    path("", include("mlxplatform.training.urls")),
    path("", include("mlxplatform.memory.urls")),
    path("", include("mlxplatform.schedules.urls")),
    path("", include("mlxplatform.accounts.urls")),
    path("", include("mlxplatform.operations.urls")),
    path("", include("mlxplatform.console.urls")),
    # One door: the admin's own form would not count wrong passwords.
    path("admin/login/", RedirectView.as_view(pattern_name="console:sign-in", query_string=True)),
    path("admin/upkeep/", admin.site.admin_view(upkeep), name="upkeep"),
    path("admin/", admin.site.urls),
]

handler400 = "mlxplatform.http.errors.bad_request"
handler403 = "mlxplatform.http.errors.forbidden"
handler404 = "mlxplatform.http.errors.not_found"
handler500 = "mlxplatform.http.errors.server_error"
