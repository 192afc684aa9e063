from django.urls import path

from chatsite.ops import analytics_views, probes, views

app_name = "ops"

urlpatterns = [
    path("ops/", views.fleet, name="fleet"),
    path("ops/analytics/", analytics_views.page, name="analytics"),
    path("ops/analytics/days.csv", analytics_views.days_as_csv, name="analytics_csv"),
    # Answered by ProbeMiddleware; here so that they have names.
    path("health/live", probes.live, name="live"),
    path("health/ready", probes.ready, name="ready"),
    path("metrics", probes.numbers, name="metrics"),
]
