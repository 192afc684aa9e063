from django.urls import path

from chatsite.review import views

app_name = "review"
urlpatterns = [
    path("review/", views.index, name="index"),
    path("review/mine/", views.mine, name="mine"),
    path("review/<uuid:conversation_id>/", views.transcript, name="transcript"),
]
