"""The table of the site's own pages: the chat, prompts, personas, links, transfers, and a person's account."""

from __future__ import annotations

from tests.walk.table import EVERYBODY, NOBODY, OWNER, SIGNED_IN, Route, Who, words
from tests.walk.world import plant

CHAT = "chat/<uuid:conversation_id>/"
MESSAGE = "chat/messages/<uuid:message_id>/"
BUSY = {"conversation_id": "busy"}
NOTED = {"notes": words("chat_conversation"), "because": "whoever looks at a conversation has read it"}
QUESTION, STOPPED, SIBLING = ({"message_id": name} for name in ("question", "stopped", "sibling"))
NAMED = Who(OWNER.may, refusal=400)  # a form names what is hers
SEARCH = "q={}"
PERSONA_FORM = {"name": "new", "line": "", "system_prompt": "new", "model": "", "thinking": ""}
PROMPT_FORM = {"name": "newest", "title": "new", "text": "new"}

ROUTES = (
    # -- the chat
    Route("", SIGNED_IN),
    Route("", OWNER, query="persona={persona_id}"),
    Route("chat/", SIGNED_IN, 405, 302, empty=400, form={"text": "begun"}),
    Route("chat/", NAMED, 405, 302, form={"text": "begun", "files": "{draft_of_none}"}),
    Route("chat/", NAMED, 405, 302, form={"text": "begun", "persona": "{persona_id}", "files": "{draft_of_none}"}),
    Route("chat/quote/", SIGNED_IN, 405, 302, form={}),
    Route("chat/quote/", OWNER, 405, 302, form={"conversation": "{conversation_id}"}),
    Route("chat/sidebar/", SIGNED_IN, 302),
    Route(
        "chat/bulk/",
        NAMED,
        405,
        302,
        empty=400,
        form={"verb": "delete", "chosen": "{conversation_id}", "confirmed": "1"},
    ),
    *(
        Route("chat/search/", SIGNED_IN, query=SEARCH.format(plant(place)))
        for place in ("answer", "title", "filetext", "thought", "half")
    ),
    Route(MESSAGE + "show/", OWNER, 302, **NOTED),
    Route("chat/temporary/", SIGNED_IN, post=200, empty=400, form={"text": "asked"}),
    Route("chat/temporary/", OWNER, query="persona={persona_id}"),
    Route("chat/temporary/<uuid:generation_id>/", OWNER, ids={"generation_id": "temporary"}),
    Route("chat/temporary/<uuid:generation_id>/", NOBODY),  # an answer of a chat that is kept is no temporary one
    Route(
        "chat/temporary/<uuid:generation_id>/seen/",
        OWNER,
        405,
        204,
        form={},
        keeps=True,  # it is still being written
        ids={"generation_id": "temporary"},
    ),
    Route("chat/files/", SIGNED_IN, 405, 200, form={"file": b"new.txt"}),
    Route("chat/files/<uuid:attachment_id>/", OWNER),
    Route("chat/files/<uuid:attachment_id>/", OWNER, ids={"attachment_id": "draft"}),
    Route("chat/files/<uuid:attachment_id>/remove/", OWNER, 405, 200, form={}, ids={"attachment_id": "draft"}),
    Route(
        "chat/files/<uuid:attachment_id>/encoding/",
        OWNER,
        405,
        200,
        form={"codec-{draft_guessed}": "cp1250"},
        ids={"attachment_id": "draft_guessed"},
    ),
    Route(CHAT + "files/", OWNER, 405, 200, form={"file": b"new.txt"}),
    Route(
        MESSAGE + "feedback/",
        OWNER,
        405,
        302,
        form={"rating": "-1", "reason": "wrong", "comment": "x", "is_reported": "on"},
    ),
    Route(CHAT, OWNER, **NOTED),
    Route(CHAT, OWNER, ids=BUSY, **NOTED),
    Route(CHAT + "earlier/", OWNER, 302),
    Route(CHAT + "send/", OWNER, 405, 302, empty=400, form={"text": "sent", "files": "{draft}"}),
    Route(CHAT + "tune/", OWNER, 405, 302, form={"system_prompt": "tuned", "temperature": "0.5"}),
    Route(CHAT + "news/", OWNER, 302),
    Route(CHAT + "queue/<uuid:entry_id>/", OWNER, 405, 302, empty=400, form={"text": "changed"}, ids=BUSY),
    Route(CHAT + "queue/<uuid:entry_id>/remove/", OWNER, 405, 302, form={}, ids=BUSY),
    Route(CHAT + "queue/<uuid:entry_id>/now/", OWNER, 405, 302, form={}, ids=BUSY),
    Route(CHAT + "menu/", OWNER),
    Route(CHAT + "arrange/", OWNER, 405, 302, empty=400, form={"verb": "untag", "name": "{tag}"}),
    Route(CHAT + "rename/", OWNER, 405, 302, form={"title": "renamed"}),
    Route(CHAT + "delete/", OWNER, post=302, form={}),
    Route(MESSAGE, OWNER),
    Route(MESSAGE + "retry/", OWNER, 405, 302, form={}),
    Route(MESSAGE + "again/", OWNER, post=302, form={"style": "shorter"}),
    Route(MESSAGE + "edit/", OWNER, post=302, empty=400, form={"text": "edited"}),
    Route(MESSAGE + "edit/", OWNER, post=302, empty=400, form={"text": "edited"}, ids=QUESTION),
    Route(MESSAGE + "resume/", OWNER, 405, 302, form={}, ids=STOPPED),
    Route(MESSAGE + "remove/", OWNER, post=302, form={"number": "1"}),
    Route(MESSAGE + "fork/", OWNER, 405, 302, form={}),
    Route(MESSAGE + "more/", OWNER),
    Route(MESSAGE + "select/", OWNER, 405, 302, form={}, ids=SIBLING),
    Route("chat/generations/<uuid:generation_id>/stop/", OWNER, 405, 302, form={}),
    # -- prompts and personas: the owner's are not shared
    Route("prompts/", SIGNED_IN),
    Route("prompts/new/", SIGNED_IN, post=302, empty=400, form=PROMPT_FORM),
    Route("prompts/options/", SIGNED_IN),
    Route("prompts/<uuid:prompt_id>/", OWNER, post=302, empty=400, form=PROMPT_FORM),
    Route("prompts/<uuid:prompt_id>/delete/", OWNER, post=302, form={}),
    Route("prompts/<uuid:prompt_id>/use/", OWNER, post=200, form={}, keeps=True),
    Route("personas/", SIGNED_IN),
    Route("personas/new/", SIGNED_IN, post=302, empty=400, form=PERSONA_FORM),
    Route("personas/<uuid:persona_id>/", OWNER, post=302, empty=400, form=PERSONA_FORM),
    Route("personas/<uuid:persona_id>/delete/", OWNER, post=302, form={}),
    # -- links
    Route("links/", SIGNED_IN),
    Route("links/<uuid:share_id>/revoke/", OWNER, 405, 302, form={}),
    Route(CHAT + "share/", OWNER, post=302, form={"scope": "anyone"}),
    Route(
        "s/<str:token>/",
        EVERYBODY,
        ids={"token": "anyone_token"},
        shows=words("anyonetext anyonetitle"),
        because="she has given this link to anyone",
    ),
    Route(
        "s/<str:token>/",
        Who(SIGNED_IN.may, stranger=404),
        ids={"token": "signed_in_token"},
        shows=words("signedintext signedintitle"),
        because="she has given this link to people of the site",
    ),
    Route("s/<str:token>/", Who(OWNER.may, stranger=404), ids={"token": "me_token"}),
    # -- in and out
    Route("transfer/", SIGNED_IN),
    Route("transfer/import/", SIGNED_IN, 405, 302, empty=400, form={"file": b"import.json"}, keeps=True),
    Route("transfer/all.zip", SIGNED_IN),
    *(
        Route(CHAT + "export/<str:form>/", OWNER, query="thoughts=1", ids={"form": form})
        for form in ("json", "md", "html")
    ),
    # -- one's account
    Route("account/usage/", SIGNED_IN),
    Route("account/usage/usage.csv", SIGNED_IN),
    Route("account/keys/", SIGNED_IN, post=200, empty=400, form={"name": "new", "scopes": "chat", "days": "30"}),
    Route("account/keys/<uuid:key_id>/rename/", OWNER, post=302, empty=400, form={"name": "new"}),
    Route("account/keys/<uuid:key_id>/revoke/", OWNER, post=302, form={}),
    Route("account/time-zone/", SIGNED_IN, post=302, form={"zone": "Asia/Tokyo"}),
    Route("account/data/", SIGNED_IN),
    Route("account/data/download/", SIGNED_IN, 405, 200, form={}),
    Route("account/delete/", SIGNED_IN, post=400, empty=400, form={"name": "somebody else"}, keeps=True),
    Route("account/delete/", Who(OWNER.may, refusal=400, page=200), post=302, form={"name": plant("name")}),
    Route("account/deleted/", EVERYBODY),
    Route("account/activity/", SIGNED_IN),
    # -- what a browser or a machine asks for
    Route("health/live", EVERYBODY, csrf=False),
    Route("health/ready", EVERYBODY, 503, csrf=False),
    Route("metrics", EVERYBODY, 403, csrf=False),
    Route("i18n/setlang/", EVERYBODY, 302, 302, form={"language": "en"}, keeps=True),
    Route("manifest.webmanifest", EVERYBODY),
    Route("favicon.ico", EVERYBODY, 302),
    Route("sw.js", EVERYBODY),
    Route("offline/", EVERYBODY),
)
