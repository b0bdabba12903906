from django.urls import path, re_path

from mlxplatform.jobs import lease_views, views

urlpatterns = [
    path("api/lease", lease_views.lease_detail),
    path("api/queues", views.queue_list),
    re_path(r"^api/queues/(?P<queue>[^/]+)/(?P<action>pause|resume)$", views.queue_action),
    path("api/jobs", views.job_list),
    path("api/jobs.csv", views.job_export),
    re_path(r"^api/jobs/bulk/(?P<action>cancel|retry|pause|resume)$", views.job_bulk),
    path("api/jobs/<str:job_id>", views.job_detail),
    path("api/jobs/<str:job_id>/stream", views.job_stream, name="job-stream"),
    path("api/jobs/<str:job_id>/events", views.job_events),
    re_path(r"^api/jobs/(?P<job_id>[^/]+)/(?P<action>cancel|retry|pause|resume)$", views.job_action),
]
