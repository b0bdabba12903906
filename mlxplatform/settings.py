"""Django settings, copied from :mod:`mlxplatform.environment`. No decision is made here twice."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import dj_database_url

from mlxplatform import environment, paths

ENV = environment.read()
HOME = ENV.home
BASE_DIR = Path(__file__).resolve().parent.parent


def _secret_key() -> str:
    """The configured key, or one made once and kept readable by this user only."""
    if ENV.secret_key:
        return ENV.secret_key
    keyfile = HOME / "secret_key"
    try:
        HOME.mkdir(parents=True, exist_ok=True)
        try:
            with open(keyfile, "x", opener=lambda p, flags: os.open(p, flags, 0o600)) as out:
                out.write(secrets.token_urlsafe(48))
        except FileExistsError:
            pass
        return keyfile.read_text().strip()
    except OSError as error:
        raise environment.BadSetting(f"the data directory {HOME} cannot be used: {error.strerror}.") from None


# No outbound connection unasked: the hub's library reports use unless told not to. Children inherit this.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")

SECRET_KEY = _secret_key()
DEBUG = False
REDIS_URL = ENV.redis_url or f"unix://{paths.broker_socket(HOME)}"

ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *ENV.allowed_hosts]
if ENV.host not in {"127.0.0.1", "localhost", "::1", "0.0.0.0", "::"}:  # noqa: S104  compared, not bound
    ALLOWED_HOSTS.append(ENV.host)
CSRF_TRUSTED_ORIGINS = [f"https://{name}" for name in ENV.allowed_hosts]

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "channels",
    "mlxplatform.api",
    "mlxplatform.retention",
    "mlxplatform.inference",
    "mlxplatform.jobs",
    "mlxplatform.rows",
    "mlxplatform.files",
    "mlxplatform.batches",
    "mlxplatform.webhooks",
    "mlxplatform.datasets",
    "mlxplatform.library",
    "mlxplatform.training",
    "mlxplatform.memory",
    "mlxplatform.schedules",
    "mlxplatform.accounts",
    "mlxplatform.operations",
    "mlxplatform.console",
]

MIDDLEWARE = [
    "mlxplatform.http.guards.GuardMiddleware",
    "mlxplatform.http.people.StaticFilesMiddleware",
    "mlxplatform.http.people.SessionMiddleware",
    "mlxplatform.http.people.CsrfViewMiddleware",
    "mlxplatform.http.people.AuthenticationMiddleware",
    "mlxplatform.accounts.middleware.IdentityMiddleware",
    "mlxplatform.accounts.middleware.QuotaMiddleware",
    "mlxplatform.http.people.MessageMiddleware",
    "mlxplatform.http.people.FrameMiddleware",
]

if ENV.traces:
    MIDDLEWARE.insert(1, "mlxplatform.tracing.TraceMiddleware")

ROOT_URLCONF = "mlxplatform.urls"
ASGI_APPLICATION = "mlxplatform.asgi.application"
APPEND_SLASH = False

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

if ENV.database_url:
    DATABASES: dict[str, Any] = {"default": dj_database_url.parse(ENV.database_url, conn_max_age=0)}
else:
    # IMMEDIATE: a transaction that reads and then writes waits for the lock instead of failing
    # (0 of 21,720 transactions locked out against 1.8 % with DEFERRED, docs/reference/measurements.md).
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": HOME / "db.sqlite3",
            "OPTIONS": {
                "timeout": 20,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON;",
            },
        }
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [{"address": REDIS_URL, "socket_timeout": None}]},
    }
}

STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": paths.artefacts_dir(HOME)}},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}
STATIC_URL = "/static/"
STATIC_ROOT = HOME / "static"
# The JSON body limit is enforced by http.body in each API's dialect; Django's own must not fire first.
DATA_UPLOAD_MAX_MEMORY_SIZE = None
FILE_UPLOAD_TEMP_DIR = None

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_HTTPONLY = True
LOGIN_URL = "/login/"
CSRF_FAILURE_VIEW = "mlxplatform.http.errors.csrf_failed"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

REST_FRAMEWORK = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["mlxplatform.http.body.StrictJSONParser"],
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "mlxplatform.http.errors.drf_exception_handler",
    "UNAUTHENTICATED_USER": None,
    "URL_FORMAT_OVERRIDE": None,
}
SPECTACULAR_SETTINGS = {"TITLE": "MLX Platform", "VERSION": "0.1.0", "SERVE_INCLUDE_SCHEMA": False}

UNFOLD = {"SITE_TITLE": "MLX Platform", "SITE_HEADER": "MLX Platform"}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "mlxplatform.logs.formatter"}},
    "filters": {
        "unexpected_only": {"()": "mlxplatform.logs.UnexpectedOnly"},
        "several_workers": {"()": "mlxplatform.logs.SeveralWorkers"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": ENV.log_level.upper()},
    "loggers": {
        "django.request": {"level": "ERROR", "filters": ["unexpected_only"]},
        "daphne": {"level": "WARNING"},
        "asyncio": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
        "dramatiq": {"level": "WARNING"},
        "dramatiq.broker.WakeBroker": {"filters": ["several_workers"]},
    },
}
