from django.urls import path

from chatsite.ops import probes, views

app_name = "ops"

urlpatterns = [
    path("ops/", views.fleet, name="fleet"),
    # Answered by ProbeMiddleware; here so that they have names.
    path("health/live", probes.live, name="live"),
    path("health/ready", probes.ready, name="ready"),
    path("metrics", probes.numbers, name="metrics"),
]
