"""Routes of datasets."""

from django.urls import path

from mlxplatform.datasets import hub_views, transfer_views, views
from mlxplatform.http.views import endpoint

urlpatterns = [
    path("api/dataset/templates", endpoint(GET=views.templates)),
    path("api/dataset/submit", endpoint(POST=views.submit_dataset)),
    path("api/dataset/preview", endpoint(POST=views.preview_dataset)),
    path("api/hub/token", endpoint(GET=hub_views.token, PUT=hub_views.set_token, DELETE=hub_views.forget_token)),
    path("api/datasets", endpoint(GET=views.dataset_list, POST=views.submit_dataset)),
    path("api/datasets/import", endpoint(POST=transfer_views.import_dataset)),
    path("api/datasets/<str:dataset_id>", endpoint(GET=views.dataset_detail, PATCH=transfer_views.change)),
    path("api/datasets/<str:dataset_id>/diff", endpoint(GET=transfer_views.difference)),
    path("api/datasets/<str:dataset_id>/push", endpoint(POST=hub_views.push)),
    path("api/datasets/<str:dataset_id>/export", endpoint(GET=transfer_views.export), name="dataset-export"),
    path("api/datasets/<str:dataset_id>/versions", endpoint(GET=views.version_list)),
    path("api/datasets/<str:dataset_id>/rows", endpoint(GET=views.row_list)),
    path("api/datasets/<str:dataset_id>/rows/<int:ordinal>", endpoint(GET=views.row_detail)),
    path("api/datasets/<str:dataset_id>/files", endpoint(GET=views.file_list)),
    path("api/datasets/<str:dataset_id>/files/<str:name>", endpoint(GET=views.file_download), name="dataset-file"),
]
