from django.urls import path

from chatsite.transfer import views

app_name = "transfer"
urlpatterns = [
    path("transfer/", views.page_of_both, name="page"),
    path("transfer/import/", views.bring_in, name="import"),
    path("transfer/all.zip", views.export_all, name="all"),
    path("chat/<uuid:conversation_id>/export/<str:form>/", views.export, name="export"),
]
