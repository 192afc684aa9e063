from __future__ import annotations

from django.urls import path

from chatsite.personas import views

app_name = "personas"

urlpatterns = [
    path("personas/", views.index, name="index"),
    path("personas/new/", views.edit, name="new"),
    path("personas/<uuid:persona_id>/", views.edit, name="edit"),
    path("personas/<uuid:persona_id>/delete/", views.delete, name="delete"),
]
