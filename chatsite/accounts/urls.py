from allauth.account import views as allauth_views
from django.db import transaction
from django.urls import path, re_path

from chatsite.accounts import views
from chatsite.accounts.passwords import where_used

app_name = "accounts"
urlpatterns = [
    path("account/time-zone/", views.time_zone, name="time_zone"),
    path("accounts/sessions/<int:session_id>/end/", views.end_session, name="end_session"),
    # allauth's own, which it reverses by its own names.
    path("accounts/login/", views.SignInView.as_view()),
    path("accounts/reauthenticate/", views.ConfirmView.as_view()),
    # In one transaction: other sessions end only once the notice is sent, when the answer with the new cookie is on its
    # way. Else a mail server that takes its time would leave the browser that asks signed out meanwhile.
    path("accounts/password/change/", where_used(transaction.atomic(allauth_views.password_change))),
    path("accounts/password/set/", where_used(transaction.atomic(allauth_views.password_set))),
    path("accounts/password/reset/", where_used(allauth_views.password_reset)),
    re_path(
        r"^accounts/password/reset/key/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$",
        where_used(allauth_views.password_reset_from_key),
    ),
]
