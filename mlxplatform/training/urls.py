"""Routes of quantizing and fine-tuning."""

from django.urls import path

from mlxplatform.http.views import endpoint
from mlxplatform.training import views

urlpatterns = [
    path("api/quantize/inspect", endpoint(POST=views.quantize_inspect)),
    path("api/quantize/submit", endpoint(POST=views.quantize_submit)),
    path("api/quantize/reports", endpoint(GET=views.quantize_reports)),
    path("api/quantize/reports/<str:job_id>", endpoint(GET=views.quantize_report)),
]
