from django.urls import path

from chatsite.sharing import views

app_name = "sharing"
urlpatterns = [
    path("links/", views.mine, name="mine"),
    path("links/<uuid:share_id>/revoke/", views.revoke, name="revoke"),
    path("chat/<uuid:conversation_id>/share/", views.share, name="share"),
    path("s/<str:token>/", views.shown, name="shown"),
]
