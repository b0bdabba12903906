from django.urls import path

from mlxplatform.files import uploads, views

urlpatterns = [
    path("v1/files", views.file_list),
    path("v1/files/<str:file_id>", views.file_detail),
    path("v1/files/<str:file_id>/content", views.file_content, name="file-content"),
    path("v1/uploads", uploads.upload_list),
    path("v1/uploads/<str:upload_id>/parts", uploads.upload_parts),
    path("v1/uploads/<str:upload_id>/complete", uploads.upload_complete),
    path("v1/uploads/<str:upload_id>/cancel", uploads.upload_cancel),
]
