from django.urls import path

from chatsite.review import report_views, views

app_name = "review"
urlpatterns = [
    path("review/", views.index, name="index"),
    path("review/mine/", views.mine, name="mine"),
    path("review/reports/", report_views.index, name="reports"),
    path("review/reports/<int:report_id>/", report_views.report, name="report"),
    path("review/<uuid:conversation_id>/", views.transcript, name="transcript"),
]
