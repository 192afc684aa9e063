from __future__ import annotations

from django.urls import path

from chatsite.prompts import views

app_name = "prompts"

urlpatterns = [
    path("prompts/", views.index, name="index"),
    path("prompts/new/", views.edit, name="new"),
    path("prompts/options/", views.options, name="options"),
    path("prompts/<uuid:prompt_id>/", views.edit, name="edit"),
    path("prompts/<uuid:prompt_id>/delete/", views.delete, name="delete"),
    path("prompts/<uuid:prompt_id>/use/", views.use, name="use"),
]
