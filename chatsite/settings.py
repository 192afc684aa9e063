"""Django's settings, from environment variables alone. A bad value stops the start with one sentence that names it.

What is not set has a default that works on one machine: the bundled servers of `STATE_DIR` when they run, a secret
key kept there, plain HTTP on loopback. `SMOLFLEET` is the site's own part, `INFERENCE` what it tells the workers' side.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from csp.constants import NONE, SELF
from redis.backoff import NoBackoff
from redis.retry import Retry

from chatsite import log_format, site_config, state_dir
from chatsite.database_url import is_connection_trouble, parse_database_url
from chatsite.embedded import EmbeddedError, discover
from inference import config as inference_config
from inference.config import Environment
from inference.errors import ConfigError

BASE_DIR = Path(__file__).resolve().parent.parent

try:
    _env = Environment(os.environ)
    STATE_DIR = state_dir.of(os.environ, BASE_DIR)
    DEBUG = _env.flag("DEBUG", False)
    _found = discover(STATE_DIR)
    IS_DATABASE_GIVEN = bool(_env.text("DATABASE_URL", ""))
    IS_REDIS_GIVEN = bool(_env.text("REDIS_URL", ""))
    DATABASE_URL = _env.text("DATABASE_URL", _found.get("DATABASE_URL", "postgresql://127.0.0.1:5432/smolfleet"))
    REDIS_URL = _env.text("REDIS_URL", _found.get("REDIS_URL", inference_config.DEFAULT_REDIS_URL))
    _database = parse_database_url(DATABASE_URL)
    _pool_size = _env.integer("DATABASE_POOL_SIZE", 12, low=0, high=500)
    SMOLFLEET = site_config.load(os.environ)
    INFERENCE = inference_config.load({**os.environ, "REDIS_URL": REDIS_URL})
    BEHIND_TLS = _env.flag("BEHIND_TLS", False)
    _tls_header = _env.text("PROXY_TLS_HEADER", "X-Forwarded-Proto")
    _hsts_seconds = _env.integer("HSTS_SECONDS", 31_536_000, low=0, high=315_360_000)
    PROXY_COUNT = _env.integer("PROXY_COUNT", 1 if BEHIND_TLS else 0, low=0, high=10)
    ALLOWED_HOSTS = list(_env.words("ALLOWED_HOSTS", ("localhost", "127.0.0.1", "[::1]")))
    CSRF_TRUSTED_ORIGINS = list(_env.words("CSRF_TRUSTED_ORIGINS"))
    _secret_key = _env.text("SECRET_KEY", "")
    if _secret_key and len(_secret_key) < 32:
        raise ConfigError(f"SECRET_KEY must have at least 32 characters, not {len(_secret_key)}.")
    SECRET_KEY = _secret_key or state_dir.secret_key(STATE_DIR)
    SECRET_KEY_FALLBACKS = list(_env.words("SECRET_KEY_FALLBACKS"))
    STATIC_ROOT = state_dir.static_root(_env, STATE_DIR)
    EMAIL_HOST = _env.text("EMAIL_HOST", "")
    EMAIL_PORT = _env.integer("EMAIL_PORT", 587, low=1, high=65_535)
    EMAIL_HOST_USER = _env.text("EMAIL_HOST_USER", "")
    EMAIL_HOST_PASSWORD = _env.text("EMAIL_HOST_PASSWORD", "")
    EMAIL_USE_TLS = _env.flag("EMAIL_USE_TLS", True)
    DEFAULT_FROM_EMAIL = _env.text("DEFAULT_FROM_EMAIL", "webmaster@localhost")
    TIME_ZONE = _env.text("TIME_ZONE", "UTC")
    LOG_LEVEL = _env.text("LOG_LEVEL", "INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    LOG_FORMAT = _env.text("LOG_FORMAT", "text", choices=("text", "json"))
except (ConfigError, EmbeddedError) as error:
    sys.exit(str(error))

# `inference` reads its own settings from the environment, wherever it is imported in this process.
os.environ["REDIS_URL"] = REDIS_URL

INSTALLED_APPS = [
    "daphne",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "django_htmx",
    "csp",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.github",
    "allauth.socialaccount.providers.openid_connect",
    "chatsite",
    "chatsite.accounts",
    "chatsite.audit",
    "chatsite.rules",
    "chatsite.usage",
    "chatsite.chat",
    "chatsite.review",
    "chatsite.prompts",
    "chatsite.personas",
    "chatsite.sharing",
    "chatsite.transfer",
    "chatsite.privacy",
    "chatsite.api",
    "chatsite.ops",
]

MIDDLEWARE = [
    "chatsite.ops.probes.ProbeMiddleware",  # first: probes answer without session, host check or database
    "django.middleware.security.SecurityMiddleware",
    "chatsite.static_files.StaticFilesMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "chatsite.accounts.time_zones.TimeZoneMiddleware",
    "chatsite.audit.middleware.OriginMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "chatsite.sign_in.FragmentMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "chatsite.accounts.sessions.LastSeenMiddleware",
    "chatsite.rules.second_factor.SecondFactorMiddleware",
]

ROOT_URLCONF = "chatsite.urls"
ASGI_APPLICATION = "chatsite.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "chatsite.context.site",
            ]
        },
    }
]

# -- data

_options: dict[str, Any] = {"connect_timeout": 3, "application_name": "smolfleet", **_database.pop("OPTIONS")}
if _pool_size:  # ASGI runs requests in many short-lived threads: only a pool keeps the number of connections bounded
    _options["pool"] = {"min_size": 0, "max_size": _pool_size, "timeout": 4.0, "max_idle": 60.0}
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        **_database,
        "OPTIONS": _options,
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,  # a pooled connection is tried before use: Postgres may have restarted
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CACHES = {
    "default": {
        "BACKEND": "chatsite.cache.RedisOrOwnMemory",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "{smolfleet}:cache",
        "VERSION": 2,  # of their form; processes of both sides of a change never read each other's
        "OPTIONS": {"socket_connect_timeout": 0.5, "socket_timeout": 0.5, "retry": Retry(NoBackoff(), 0)},
    }
}
SESSION_ENGINE = "django.contrib.sessions.backends.db"  # signing out counts at once, and nobody is lost with Redis
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024 * 1024

# -- people

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = [
    "chatsite.accounts.passwords.PasswordGate",
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
    "django.contrib.auth.hashers.ScryptPasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_ADAPTER = "chatsite.accounts.adapter.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "optional" if EMAIL_HOST else "none"
ACCOUNT_PREVENT_ENUMERATION = "strict"  # signing up with somebody's address is as with any other; see accounts.adapter
ACCOUNT_RATE_LIMITS = {
    "login": "120/m/ip",  # passwords to hash; wrong ones are counted in accounts.attempts
    "login_failed": "100/10m/ip,5/5m/key",  # second factors
    "signup": "60/m/ip",
}
ACCOUNT_LOGOUT_REDIRECT_URL = "/"
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_REAUTHENTICATION_METHODS = [
    *(["password"] if SMOLFLEET.password_sign_in else []),
    "mfa",
    *(["code"] if EMAIL_HOST else []),  # it comes by mail
]
ACCOUNT_EMAIL_NOTIFICATIONS = bool(EMAIL_HOST)  # tells of a new password, of a factor that was added or removed
MFA_ADAPTER = "chatsite.rules.second_factor.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = SMOLFLEET.site_name
MFA_TOTP_TOLERANCE = 1  # periods before and after: a phone's clock may be half a minute off
MFA_ALLOW_UNVERIFIED_EMAIL = not EMAIL_HOST  # where no mail is sent nobody could verify one
USERSESSIONS_ADAPTER = "chatsite.accounts.sessions.SessionsAdapter"
ACCOUNT_DEFAULT_HTTP_PROTOCOL = "https" if BEHIND_TLS else "http"  # of addresses given to others: mail, providers
SOCIALACCOUNT_ADAPTER = "chatsite.accounts.outside.adapter.OutsideAdapter"
SOCIALACCOUNT_FORMS = {
    "signup": "chatsite.accounts.outside.forms.SignUpForm",
    "disconnect": "chatsite.accounts.outside.forms.DisconnectForm",
}
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {"provider_class": "chatsite.accounts.outside.openid.OpenIDProvider"},
}
SOCIALACCOUNT_QUERY_EMAIL = True  # GitHub tells which addresses are verified only when asked
SOCIALACCOUNT_EMAIL_VERIFICATION = "none"  # others are not kept
SOCIALACCOUNT_EMAIL_AUTHENTICATION_AUTO_CONNECT = True  # where OIDC_LINK_BY_EMAIL finds whose account it is
SOCIALACCOUNT_REQUESTS_TIMEOUT = 5  # seconds
ALLAUTH_TRUSTED_PROXY_COUNT = PROXY_COUNT
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if EMAIL_HOST else 'dummy'}.EmailBackend"
EMAIL_TIMEOUT = 10

# -- the browser's side

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "chatsite.static_files.HashedStaticFiles"},
}
WHITENOISE_USE_FINDERS = True
WHITENOISE_ALLOW_ALL_ORIGINS = False
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "font-src": [SELF],
        "form-action": [SELF, *SMOLFLEET.outside.origins],  # a redirect after the form counts, too
        "manifest-src": [SELF],
        "worker-src": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
if BEHIND_TLS:
    if _tls_header.lower() != "none":
        SECURE_PROXY_SSL_HEADER = ("HTTP_" + _tls_header.upper().replace("-", "_"), "https")
        SECURE_SSL_REDIRECT = True  # without the header every request would look like plain HTTP and redirect for ever
    SECURE_HSTS_SECONDS = _hsts_seconds
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True
    SESSION_COOKIE_NAME = "__Host-sessionid"
    CSRF_COOKIE_NAME = "__Host-csrftoken"

# -- languages

LANGUAGE_CODE = "en"
LOCALE_PATHS = [BASE_DIR / "locale"]
# `make install` compiles the catalogues. One that is not there is not offered, for it would leave half a page English.
LANGUAGES = [
    ("en", "English"),
    *([("de", "Deutsch")] if (LOCALE_PATHS[0] / "de/LC_MESSAGES/django.mo").exists() else []),
]
LANGUAGE_COOKIE_AGE = 31_536_000
LANGUAGE_COOKIE_HTTPONLY = True
LANGUAGE_COOKIE_SAMESITE = "Lax"
LANGUAGE_COOKIE_SECURE = BEHIND_TLS
USE_TZ = True

LOGGING = log_format.configure(level=LOG_LEVEL, style=LOG_FORMAT)


def database_trouble(error: Exception) -> str:
    """One sentence for a command that Postgres did not serve: out of reach, or what it says itself."""
    place = f"{DATABASES['default']['HOST']}:{DATABASES['default']['PORT'] or 5432}"
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if not is_connection_trouble(error):
        return f"Postgres at {place} says: {reason}"
    if IS_DATABASE_GIVEN or "DATABASE_URL" in _found:
        return f"Postgres at {place} cannot be reached: {reason}"
    return f"DATABASE_URL is not set and no bundled Postgres runs in STATE_DIR {STATE_DIR}; `make up` starts one."
