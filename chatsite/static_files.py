"""Static files: hashed names once they are collected, plain names before; served by the web process itself."""

from __future__ import annotations

from django.contrib.staticfiles.storage import ManifestStaticFilesStorage
from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile


class HashedStaticFiles(ManifestStaticFilesStorage):
    """Names carry a hash of the content, so that browsers may keep them for ever.

    Without a manifest (nothing was collected: tests, a first `runserver`) names stay as they are.
    """

    manifest_strict = False

    def stored_name(self, name: str) -> str:
        if not self.hashed_files:
            return name
        return str(super().stored_name(name))


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]
    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        """The whole file at once: ours are small, and a streamed one would cost ASGI a thread per piece."""
        found = static_file.get_response(request.method, request.META)
        content = b""
        if found.file is not None:
            with found.file:
                content = found.file.read()
        response = HttpResponse(content, status=int(found.status))
        del response["content-type"]
        for name, value in found.headers:
            response[name] = value
        return response
