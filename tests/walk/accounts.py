"""The table of allauth's pages: signing in and up, passwords, addresses, second factors, sessions, outside accounts.

Whoever is signed in sees their own there; no address takes an id, but for links out of a mail.
"""

from __future__ import annotations

from tests.walk.table import EVERYBODY, OWNER, SIGNED_IN, STRANGERS, Route, Who, words
from tests.walk.world import PASSWORD, plant

NEW = "a new horse 8"
ADDRESS_LISTED = {
    "notes": words("account_emailaddress"),
    "because": "allauth puts the account's address on its list when that is first looked at",
}
CODES_SEEN = {"notes": words("mfa_authenticator"), "because": "allauth notes when recovery codes were last looked at"}
HAS_FACTOR = OWNER  # she alone has one here
LED_HOME = Who(frozenset(), refusal=302, stranger=302)
SOCIAL = ("login/cancelled/", "login/error/", "signup/", "connections/")

ROUTES = (
    Route(
        "accounts/login/",
        STRANGERS,
        post=200,
        empty=200,
        form={"login": plant("name"), "password": "wrong"},
        keeps=True,
        writes=words("audit_auditentry"),
        because="that it failed is recorded",
    ),
    Route("accounts/logout/", Who(SIGNED_IN.may, stranger=302), post=302, form={}),
    Route("accounts/inactive/", EVERYBODY),
    Route(
        "accounts/signup/",
        STRANGERS,
        post=200,
        form={"username": plant("name"), "password1": NEW, "password2": NEW},
        keeps=True,
    ),
    Route("accounts/reauthenticate/", SIGNED_IN, post=200, form={"password": "wrong"}, keeps=True),
    Route("accounts/reauthenticate/code/", SIGNED_IN, 403, 403, form={}, keeps=True),  # no mail is sent here
    Route("accounts/reauthenticate/code/confirm/", SIGNED_IN, 403, 403, form={}, keeps=True),
    Route(
        "accounts/email/", SIGNED_IN, post=302, form={"action_add": "", "email": "new@example.org"}, **ADDRESS_LISTED
    ),
    Route(
        "accounts/email/",
        SIGNED_IN,
        post=302,
        form={"action_remove": "", "email": f"{plant('mail')}@example.org"},
        keeps=True,
        **ADDRESS_LISTED,
    ),
    Route("accounts/confirm-email/", EVERYBODY),
    Route("accounts/confirm-email/<key>/", EVERYBODY, 200, 404, form={}, keeps=True, ids={"key": "nothing"}),
    Route("accounts/login/code/confirm/", LED_HOME, 302, 302, form={"code": "123456"}, keeps=True),
    Route(
        "accounts/password/change/",
        SIGNED_IN,
        post=302,
        empty=200,
        form={"oldpassword": PASSWORD, "password1": NEW, "password2": NEW},
    ),
    Route(
        "accounts/password/set/", SIGNED_IN, 302, 302, form={"password1": NEW, "password2": NEW}, keeps=True
    ),  # they have one
    Route(
        "accounts/password/reset/",
        EVERYBODY,
        post=302,
        empty=200,
        form={"email": f"{plant('mail')}@example.org"},
        keeps=True,
    ),
    Route("accounts/password/reset/done/", EVERYBODY),
    Route(
        "accounts/password/reset/key/<uidb36>-<key>/",
        EVERYBODY,
        200,
        200,
        form={"password1": NEW, "password2": NEW},
        keeps=True,
        ids={"uidb36": "nothing", "key": "nothing"},
    ),
    Route("accounts/password/reset/key/done/", EVERYBODY),
    # -- second factors
    Route("accounts/2fa/", SIGNED_IN),
    Route("accounts/2fa/authenticate/", LED_HOME, 302, 302, form={"code": "123456"}, keeps=True),
    Route("accounts/2fa/reauthenticate/", Who(OWNER.may, refusal=302), post=200, form={"code": "123456"}, keeps=True),
    Route(
        "accounts/2fa/totp/activate/",
        Who(SIGNED_IN.may - OWNER.may, refusal=302),
        post=200,
        form={"code": "123456"},
        keeps=True,
    ),
    Route("accounts/2fa/totp/deactivate/", HAS_FACTOR, post=302, form={}),
    Route("accounts/2fa/recovery-codes/", HAS_FACTOR, **CODES_SEEN),
    Route("accounts/2fa/recovery-codes/generate/", Who(OWNER.may, refusal=200), post=302, form={}),
    Route("accounts/2fa/recovery-codes/download/", HAS_FACTOR, **CODES_SEEN),
    # -- sessions
    Route("accounts/sessions/", SIGNED_IN, post=302, form={}),
    Route("accounts/sessions/<int:session_id>/end/", OWNER, 405, 302, form={}),
    # -- outside accounts: no provider is set up here
    Route("accounts/3rdparty/", SIGNED_IN, post=200, form={}, keeps=True),
    Route("accounts/3rdparty/", Who(OWNER.may, refusal=200), post=302, form={"account": "{social_id}"}),
    Route("accounts/3rdparty/login/cancelled/", EVERYBODY),
    Route("accounts/3rdparty/login/error/", EVERYBODY, 401),
    Route("accounts/3rdparty/signup/", LED_HOME, 302, 302, form={"username": "new"}, keeps=True),
    *(Route(f"accounts/social/{page}", EVERYBODY, 301, 301, form={}, keeps=True) for page in SOCIAL),
    *(
        Route(f"accounts/{provider}/{page}", EVERYBODY, 404, 404, form={}, keeps=True, csrf=page == "login/")
        for provider in ("github", "oidc")
        for page in ("login/", "login/callback/")
    ),
)
