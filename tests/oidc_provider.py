"""A small real OpenID provider on loopback: discovery, a page that asks for consent, tokens, keys, userinfo.

It checks what a provider must check: client and secret, the redirect address, PKCE, that a code is used once. `fault`
makes it misbehave in one way. It also answers like GitHub's API, which is OAuth without an ID token. Nobody signs in to
it: whoever presses "Allow" is `person`, a set of claims that a test may change.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import functools
import hashlib
import html
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT_ID = "smolfleet"
CLIENT_SECRET = "a secret of two"
ANN = {"sub": "248289761001", "preferred_username": "ann", "name": "Ann Lee"}


class Fault(enum.Enum):
    """What the provider gets wrong."""

    AUDIENCE = "the ID token is for another client"
    OTHER_PARTY = "the ID token was issued to another client"
    ISSUER = "the ID token is of another issuer"
    EXPIRED = "the ID token is an hour old"
    SIGNATURE = "the ID token is signed with a key that is not published, under the name of one that is"
    UNKNOWN_KEY = "the ID token names a key that is not published"
    UNSIGNED = "the ID token is not signed"
    SHARED_SECRET = "the ID token is signed with something public as if it were a shared secret"
    NONCE = "the ID token has the nonce of another sign-in"
    NO_SUBJECT = "the ID token says of nobody who it is"
    NO_ID_TOKEN = "there is none"
    OTHER_SUBJECT = "userinfo speaks of another person"
    NO_JSON = "the token endpoint answers with a page"
    OTHER_NAME = "discovery names another issuer"
    NO_ENDPOINT = "discovery names no token endpoint"
    BROKEN = "the token endpoint answers 500"
    SILENT = "the token endpoint does not answer"


@dataclass(frozen=True)
class Grant:
    redirect_uri: str
    challenge: str
    nonce: str
    scope: str


@dataclass
class Answer:
    body: bytes
    kind: str = "application/json"
    status: int = HTTPStatus.OK
    location: str = ""


@functools.cache
def _private_key(_name: str) -> rsa.RSAPrivateKey:
    """Made once in a run: it takes a good part of a second."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _json(data: Any, status: int = HTTPStatus.OK) -> Answer:
    return Answer(json.dumps(data).encode(), status=status)


def _refused(error: str, status: int = HTTPStatus.BAD_REQUEST) -> Answer:
    return _json({"error": error}, status)


PAGE = """<!doctype html><html lang="en"><title>Provider</title><link rel="icon" href="data:,">
<h1>Let {client} know who you are?</h1>
<form method="post" action="/consent?{query}"><button name="answer" value="allow">Allow</button>
<button name="answer" value="deny">Deny</button></form></html>"""


@dataclass
class Provider:
    """Start with `with Provider() as provider:`; `stop` closes its door for good."""

    redirect_uris: set[str] = field(default_factory=set)
    person: dict[str, Any] = field(default_factory=lambda: dict(ANN))
    github: dict[str, Any] = field(default_factory=lambda: {"id": 7, "login": "octo", "name": "Octo Cat"})
    github_emails: list[dict[str, Any]] = field(default_factory=list)
    fault: Fault | None = None
    refusals: list[str] = field(default_factory=list)  # what it has refused

    def __post_init__(self) -> None:
        self._key = _private_key("one")
        self._stopping = threading.Event()
        self._grants: dict[str, Grant] = {}
        self._tokens: set[str] = set()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(provider.get)

            def do_POST(self) -> None:
                self._answer(provider.post)

            def _answer(self, ask: Callable[..., Answer]) -> None:
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                answer = ask(url.path, _single(url.query), _single(body), self.headers.get("Authorization", ""))
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.kind)
                self.send_header("Content-Length", str(len(answer.body)))
                if answer.location:
                    self.send_header("Location", answer.location)
                with contextlib.suppress(ConnectionError):  # nobody waits any more
                    self.end_headers()
                    self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Provider:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    # -- what it answers

    def get(self, path: str, query: dict[str, str], _body: dict[str, str], authorization: str) -> Answer:
        match path:
            case "/.well-known/openid-configuration":
                return _json(self._about())
            case "/authorize":
                wrong = self._wrong_question(query)
                if wrong:
                    return self._refuse(wrong)
                return Answer(PAGE.format(client=CLIENT_ID, query=html.escape(urlencode(query))).encode(), "text/html")
            case "/keys":
                return _json({"keys": [self._public_key()]})
            case "/userinfo":
                if authorization.removeprefix("Bearer ") not in self._tokens:
                    return self._refuse("invalid_token", HTTPStatus.UNAUTHORIZED)
                return _json({**self.person, **({"sub": "666"} if self.fault is Fault.OTHER_SUBJECT else {})})
            case "/api/user" | "/api/user/emails":
                if authorization.removeprefix("token ") not in self._tokens:
                    return self._refuse("bad credentials", HTTPStatus.UNAUTHORIZED)
                return _json(self.github if path == "/api/user" else self.github_emails)
        return _refused("not_found", HTTPStatus.NOT_FOUND)

    def post(self, path: str, query: dict[str, str], body: dict[str, str], authorization: str) -> Answer:
        match path:
            case "/consent":
                wrong = self._wrong_question(query)
                return self._refuse(wrong) if wrong else self._consented(query, body["answer"])
            case "/token":
                return self._token(body, authorization)
        return _refused("not_found", HTTPStatus.NOT_FOUND)

    def _about(self) -> dict[str, Any]:
        about = {
            "issuer": "https://other.example" if self.fault is Fault.OTHER_NAME else self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
        }
        if self.fault is Fault.NO_ENDPOINT:
            del about["token_endpoint"]
        return about

    def _wrong_question(self, query: dict[str, str]) -> str:
        if query.get("client_id") != CLIENT_ID:
            return "unauthorized_client"
        if query.get("redirect_uri") not in self.redirect_uris:
            return f"redirect_uri {query.get('redirect_uri')}"
        if query.get("response_type") != "code" or not query.get("state"):
            return "invalid_request"
        if query.get("code_challenge_method") != "S256" or len(query.get("code_challenge", "")) != 43:
            return "no PKCE"
        return ""

    def _consented(self, query: dict[str, str], answer: str) -> Answer:
        told = {"state": query["state"]}
        if answer == "allow":
            told["code"] = secrets.token_urlsafe(16)
            self._grants[told["code"]] = Grant(
                query["redirect_uri"], query["code_challenge"], query.get("nonce", ""), query.get("scope", "")
            )
        else:
            told["error"] = "access_denied"
        return Answer(b"", status=HTTPStatus.SEE_OTHER, location=f"{query['redirect_uri']}?{urlencode(told)}")

    def _token(self, body: dict[str, str], authorization: str) -> Answer:
        given = (body.get("client_id"), body.get("client_secret"))
        if authorization.startswith("Basic "):
            given = tuple(base64.b64decode(authorization[6:]).decode().split(":", 1))  # type: ignore[assignment]
        if given != (CLIENT_ID, CLIENT_SECRET):
            return self._refuse("invalid_client", HTTPStatus.UNAUTHORIZED)
        grant = self._grants.pop(body.get("code", ""), None)
        verifier = hashlib.sha256(body.get("code_verifier", "").encode()).digest()
        proof = base64.urlsafe_b64encode(verifier).rstrip(b"=").decode()
        if grant is None or grant.redirect_uri != body.get("redirect_uri") or grant.challenge != proof:
            return self._refuse("invalid_grant")
        if self.fault is Fault.SILENT:
            self._stopping.wait(20)
        if self.fault in (Fault.BROKEN, Fault.SILENT):
            return _refused("server_error", HTTPStatus.INTERNAL_SERVER_ERROR)
        if self.fault is Fault.NO_JSON:
            return Answer(b"<h1>Welcome</h1>", "application/json")
        token = secrets.token_urlsafe(16)
        self._tokens.add(token)
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": 300}
        if "openid" in grant.scope.split() and self.fault is not Fault.NO_ID_TOKEN:
            answer["id_token"] = self._id_token(grant)
        return _json(answer)

    def _id_token(self, grant: Grant) -> str:
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.issuer,
            "sub": self.person["sub"],
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": grant.nonce,
        }
        key: Any = self._key
        headers, algorithm = {"kid": "one"}, "RS256"
        match self.fault:
            case Fault.AUDIENCE:
                claims["aud"] = "another"
            case Fault.OTHER_PARTY:
                claims |= {"aud": [CLIENT_ID, "another"], "azp": "another"}
            case Fault.ISSUER:
                claims["iss"] = "https://other.example"
            case Fault.EXPIRED:
                claims |= {"iat": now - 3_900, "exp": now - 3_600}
            case Fault.SIGNATURE:
                key = _private_key("another")
            case Fault.UNKNOWN_KEY:
                headers = {"kid": "two"}
            case Fault.UNSIGNED:
                key, algorithm = None, "none"
            case Fault.SHARED_SECRET:
                key, algorithm = self._public_key()["n"], "HS256"
            case Fault.NONCE:
                claims["nonce"] = "another"
            case Fault.NO_SUBJECT:
                del claims["sub"]
        return jwt.encode(claims, key, algorithm=algorithm, headers=headers)

    def _public_key(self) -> dict[str, Any]:
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return {**public, "kid": "one", "alg": "RS256", "use": "sig"}

    def _refuse(self, error: str, status: int = HTTPStatus.BAD_REQUEST) -> Answer:
        self.refusals.append(error)
        return _refused(error, status)


def _single(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
