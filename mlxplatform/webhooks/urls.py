from django.urls import path

from mlxplatform.webhooks import views

urlpatterns = [
    path("api/webhooks", views.webhook_list),
    path("api/webhooks/<str:webhook_id>", views.webhook_detail),
]
