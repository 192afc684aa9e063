from django.urls import path

from chatsite.privacy import views

app_name = "privacy"
urlpatterns = [
    path("account/data/", views.mine, name="mine"),
    path("account/data/download/", views.download, name="download"),
    path("account/delete/", views.delete, name="delete"),
    path("account/deleted/", views.gone, name="gone"),
]
