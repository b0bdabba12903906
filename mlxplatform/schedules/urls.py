from django.urls import path, re_path

from mlxplatform.http.views import endpoint
from mlxplatform.schedules import views

urlpatterns = [
    path("api/schedules", endpoint(GET=views.schedule_list, POST=views.schedule_make)),
    path(
        "api/schedules/<str:schedule_id>",
        endpoint(GET=views.schedule_detail, PATCH=views.schedule_change, DELETE=views.schedule_remove),
    ),
    path("api/schedules/<str:schedule_id>/firings", endpoint(GET=views.firing_list)),
    re_path(r"^api/schedules/(?P<schedule_id>[^/]+)/(?P<action>pause|resume|run)$", endpoint(POST=views.schedule_act)),
]
