from django.urls import path

from chatsite.usage import views

app_name = "usage"
urlpatterns = [
    path("account/usage/", views.mine, name="mine"),
    path("account/usage/usage.csv", views.mine_as_csv, name="csv"),
]
