from django.urls import path

from chatsite.audit import views

app_name = "audit"
urlpatterns = [
    path("ops/audit/", views.index, name="index"),
    path("ops/audit/csv/", views.as_csv, name="csv"),
    path("account/activity/", views.mine, name="mine"),
]
