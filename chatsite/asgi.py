"""Entry of the web process: streams and `/v1` go to consumers, all else to Django; sockets pass an origin check.

Before all of them stands the gate, which judges length, sender and pace of a body before anybody reads it.

Consumers run no Django middleware: security headers, sign-in and limits there are their own work.
"""

from __future__ import annotations

import os

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application
from django.urls import URLPattern, re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings")
django_application = get_asgi_application()

from chatsite.api import routing as api_routing  # noqa: E402  (models exist only now)
from chatsite.chat import routing as chat_routing  # noqa: E402
from chatsite.gate.bodies import BodyGate  # noqa: E402


def with_user(route: URLPattern) -> URLPattern:
    """The same route, its consumer knowing who is signed in. Django's own pages find that out themselves."""
    return URLPattern(route.pattern, AuthMiddlewareStack(route.callback))


routes = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                *map(with_user, chat_routing.http_urlpatterns),
                *api_routing.http_urlpatterns,
                re_path(r"", django_application),  # type: ignore[arg-type]
            ]
        ),
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(chat_routing.websocket_urlpatterns))),
    }
)
application = BodyGate(routes)
