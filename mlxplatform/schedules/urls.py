from django.urls import path, re_path

from mlxplatform.schedules import views

urlpatterns = [
    path("api/schedules", views.schedules),
    path("api/schedules/<str:schedule_id>", views.schedule),
    path("api/schedules/<str:schedule_id>/firings", views.firings),
    re_path(r"^api/schedules/(?P<schedule_id>[^/]+)/(?P<action>pause|resume|run)$", views.act),
]
