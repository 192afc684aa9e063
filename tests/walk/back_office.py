"""The table of pages for those who look after the site: reviewers, operators, auditors, and Django's admin."""

from __future__ import annotations

from tests.walk.table import (
    ADMIN,
    ANALYTICS,
    AUDITORS,
    EVERYBODY,
    FLEET,
    HELP,
    OFFICE,
    REVIEWERS,
    SIGNED_IN,
    Model,
    Route,
    Who,
    words,
)

LOGGED = words("audit_auditentry")
READ = words(
    "name title instructions question answer thought filename filetext edited secondanswer thirdanswer comment note"
    " arguments result error tag"
)
AUDITED = words("address audit first keyname last name reason shownkey mail uid")

ROUTES = (
    # -- review
    Route("review/", REVIEWERS),
    Route("review/", REVIEWERS, query="owner={mail}", shows=words("name"), because="reviewers look for people by name"),
    Route("review/mine/", SIGNED_IN),
    Route("review/reports/", REVIEWERS, shows=words("name"), because="a report says whose it is"),
    Route(
        "review/reports/",
        REVIEWERS,
        query="state=handled",
        shows=words("name note"),
        because="a handled report has its note",
    ),
    Route(
        "review/reports/<int:report_id>/",
        REVIEWERS,
        post=302,
        empty=409,
        form={"open_again": "1"},
        shows=words("name note"),
        writes=words("review_reportoutcome"),
        because="reviewers handle reports, and say in a note what came of it",
    ),
    Route(
        "review/<uuid:conversation_id>/",
        REVIEWERS,
        post=400,
        form={"reason": " . "},
        shows=words("name"),
        because="it says whose it is",
    ),
    Route(
        "review/<uuid:conversation_id>/",
        REVIEWERS,
        post=200,
        empty=400,
        form={"reason": "A report of its owner"},
        shows=READ,
        writes=words("review_accessevent audit_auditentry"),
        because="the reason given is recorded before anything is shown",
    ),
    # -- operators and auditors
    Route("ops/", FLEET),
    Route("ops/analytics/", ANALYTICS, shows=words("name"), because="operators see who uses how much"),
    Route("ops/analytics/days.csv", ANALYTICS, 405, 200, form={}, writes=LOGGED, because="taking it away is recorded"),
    Route("ops/audit/", AUDITORS, shows=AUDITED, because="the log says who did what from where, and what changed"),
    Route(
        "ops/audit/csv/",
        AUDITORS,
        405,
        200,
        form={},
        shows=AUDITED,
        writes=LOGGED,
        because="as the page; and it is recorded",
    ),
    # -- Django's admin, but for its models
    Route("admin/", OFFICE, post=200, form={}, keeps=True),
    Route(
        "admin/login/",
        Who(OFFICE.may, refusal=403),
        302,
        405,
        form={"username": "admin", "password": "guessed"},
        keeps=True,
    ),
    Route("admin/logout/", Who(OFFICE.may, refusal=302, stranger=302), 405, 200, form={}),
    Route("admin/password_change/", EVERYBODY, 302, 302, form={}, keeps=True),
    Route("admin/password_change/done/", OFFICE),
    Route("admin/autocomplete/", OFFICE, 403),
    Route("admin/jsi18n/", OFFICE),
    Route(
        "admin/r/<path:content_type_id>/<path:object_id>/",
        OFFICE,
        404,
        404,
        form={},
        keeps=True,
        ids={"content_type_id": "user_type", "object_id": "owner_id"},
    ),
    Route(
        "admin/<app_label>/",
        Who(ADMIN.may, refusal=302, staff=404),
        post=200,
        form={},
        keeps=True,
        ids={"app_label": "chat_app"},
    ),
    Route(
        "admin/<app_label>/",
        Who(HELP.may, refusal=302, staff=404),
        post=200,
        form={},
        keeps=True,
        ids={"app_label": "accounts_app"},
    ),
    Route("admin/<url>", OFFICE, 404, 404, form={}, keeps=True, ids={"url": "nothing"}),
    Route(
        "admin/accounts/user/<id>/password/",
        HELP,
        post=200,
        form={"password1": "x", "password2": "y"},
        keeps=True,
        ids={"id": "owner_id"},
        shows=words("name"),
        because="it says whose password that is",
    ),
    Route(  # whose rights the help desk lacks
        "admin/accounts/user/<id>/password/",
        ADMIN,
        post=200,
        form={"password1": "x", "password2": "y"},
        keeps=True,
        ids={"id": "reviewer_id"},
        notes=LOGGED,
        because="that a change was refused is recorded",
    ),
)

MODELS = (
    Model("account.emailaddress", words("mail name")),
    Model("socialaccount.socialaccount", words("uid name")),
    Model(
        "accounts.apikey",
        words("keyname shownkey name"),
        add=403,
        saved=302,
        writes=words("accounts_apikey audit_auditentry django_admin_log"),
    ),
    Model(
        "accounts.user",
        words("name first last mail address browser keyname shownkey"),
        also=words("helpdesk"),
    ),
    Model("rules.siterules", add=403, delete=403, listed=302),
    Model("auth.group", notes=LOGGED),  # that a change was refused
    Model("usage.usageday", words("keyname shownkey name"), add=403, delete=403, saved=403),
    *(
        Model(f"chat.{name}", words("name error"), add=403, delete=403, history=403, saved=403)
        for name in ("conversation", "message", "generation", "feedback", "attachment")
    ),
    Model("review.accessevent", words("name reason"), add=403, delete=403, saved=403),
    *(
        Model(name, add=403, change=302, delete=302, history=302, saved=302)
        for name in ("prompts.prompttemplate", "personas.persona")
    ),
    Model("sharing.share", words("name"), add=403, delete=403, history=403, saved=403),
)
