"""The settings table: every environment variable the platform reads, with its parser, default and meaning.

One place, because the supervisor refuses unknown names, the docs table is generated from it, and
Django's settings only copy values out of it. It imports nothing of ours.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "MLXPLATFORM_"


class BadSetting(ValueError):
    """A setting that cannot be used; the message is one sentence for a person."""


def _flag(raw: str) -> bool:
    if raw.lower() in {"1", "true", "yes", "on"}:
        return True
    if raw.lower() in {"0", "false", "no", "off"}:
        return False
    raise ValueError("use 1 or 0")


def _port(raw: str) -> int:
    value = int(raw)
    if not 1 <= value <= 65535:
        raise ValueError("use a number from 1 to 65535")
    return value


def _positive(raw: str) -> int:
    value = int(raw)
    if value < 1:
        raise ValueError("use a whole number above 0")
    return value


def _natural(raw: str) -> int:
    value = int(raw)
    if value < 0:
        raise ValueError("use 0 or a whole number above it")
    return value


def _seconds(raw: str) -> float:
    value = float(raw)
    if not 0 < value < float("inf"):
        raise ValueError("use a number of seconds above 0")
    return value


def _list(raw: str) -> list[str]:
    return [item.strip() for item in raw.split(",") if item.strip()]


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(raw: str) -> str:
        if raw not in allowed:
            raise ValueError(f"use one of {', '.join(allowed)}")
        return raw

    return parse


def _networks(raw: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    try:
        return [ipaddress.ip_network(item, strict=False) for item in _list(raw)]
    except ValueError:
        raise ValueError("use addresses such as 127.0.0.1 or networks such as 10.0.0.0/8, comma-separated") from None


def _collector(raw: str) -> str:
    if raw and not raw.startswith(("http://", "https://")):
        raise ValueError("use an address that begins with http:// or https://")
    return raw


@dataclass(frozen=True)
class Setting:
    """One variable. ``default`` is text, parsed like a value from the environment ("" stays "")."""

    name: str
    default: str
    parse: Callable[[str], Any]
    doc: str
    short: str = ""


SETTINGS: tuple[Setting, ...] = (
    Setting("HOME", "./var", lambda raw: Path(raw).expanduser().absolute(), "Data directory: database, models, artefacts, logs."),
    Setting("HOST", "127.0.0.1", str, "Address the web server binds. Any other than loopback needs a key first."),
    Setting("PORT", "8000", _port, "Port the web server binds.", short="PORT"),
    Setting("MODEL", "", str, "Id of the model to serve; empty: the starter model.", short="MODEL"),
    Setting("HOST_ID", "local", str, "Name of this machine as a GPU host; unique on one broker."),
    Setting(
        "UNKNOWN_MODEL",
        "current",
        _one_of("current", "refuse"),
        "Unknown model names: answered by the current model, or refused with 404.",
    ),
    Setting(
        "AUTH",
        "auto",
        _one_of("auto", "required"),
        "auto: keyless on loopback until the first key exists. required: always a key.",
    ),
    Setting("ALLOWED_HOSTS", "", _list, "More names this server may be called by, comma-separated, besides localhost."),
    Setting("PROXIES", "", _networks, "Addresses of reverse proxies whose X-Forwarded-For and X-Forwarded-Proto are believed."),
    Setting("CORS_ORIGINS", "", _list, "Web origins allowed to call the API from a browser, comma-separated."),
    Setting("MAX_BODY_MB", "10", _positive, "Largest JSON request body, MiB."),
    Setting("MAX_FILE_MB", "512", _positive, "Largest uploaded file, MiB."),
    Setting("SLOTS", "16", _positive, "Sequences the engine decodes at once."),
    Setting("QUEUE_LIMIT", "64", _natural, "Interactive requests that may wait for a slot before 429."),
    Setting("ROW_SLOTS", "0", _natural, "Sequences decoded at once while all of them are batch rows; 0: twice SLOTS."),
    Setting("ROW_CHUNKS", "16", _positive, "Chunks of batch rows a host works on at once."),
    Setting("CPU_JOBS", "8", _positive, "Background jobs the cpu process works on at once."),
    Setting("CONTEXT", "0", _natural, "Context window in tokens; 0: what the model was made for."),
    Setting("MEMORY_BUDGET_MB", "0", _natural, "Memory the engines may use, MiB; 0: decided from the machine."),
    Setting(
        "KEEP_ALIVE_SECONDS",
        "0",
        _natural,
        "An unused model leaves memory after so many seconds, unless pinned; 0: only when room is needed.",
    ),
    Setting(
        "ROOM_WAIT_SECONDS",
        "30",
        _natural,
        "How long a request for a model that does not fit waits for the ones in use to fall idle before it is 503.",
    ),
    Setting(
        "MEMORY_FLOOR_PERCENT",
        "3",
        _natural,
        "Share of the machine's memory kept free, percent: below it caches shrink, idle models leave, then 503. 0: off.",
    ),
    Setting("ROW_SHARE", "0", _natural, "Slots that batch rows keep even while chat waits for one."),
    Setting("PREFILL_TARGET_MS", "100", _positive, "Longest prefill chunk while somebody waits for tokens, ms."),
    Setting(
        "DRAFT",
        "",
        str,
        "Guess ahead for a request that runs alone: ngram (from the text's own repetitions) or the id of a smaller model.",
    ),
    Setting(
        "KV_BITS",
        "0",
        _one_of("0", "4", "8"),
        "Bits of the KV cache; 0: as computed. Quantized, a model answers one request at a time; 501 where it cannot.",
    ),
    Setting(
        "VISION",
        "auto",
        _one_of("auto", "off"),
        "auto: a model with eyes is loaded with them where that is installed (make vision), and answers one request at a time. "
        "off: for its words only.",
    ),
    Setting("PRIVATE_IMAGES", "0", _flag, "Pictures may be fetched from addresses inside one's own network."),
    Setting("DRAFT_TOKENS", "4", _positive, "Tokens guessed at once."),
    Setting("PREFIX_CACHE_MB", "1024", _natural, "Prompt caches kept for reuse, MiB; 0: off."),
    Setting(
        "DTYPE",
        "auto",
        _one_of("auto", "float32", "bfloat16", "float16", "native"),
        "Weights in memory; auto: float32 on CPU, as stored on Metal.",
    ),
    Setting("BLAS", "", str, "Path of a BLAS library for CPU engines; empty: the best one found."),
    Setting("THREADS", "0", _natural, "BLAS threads of a CPU engine; 0: cores minus one."),
    Setting("PAUSE_ON_BATTERY", "0", _flag, "Training and quantizing wait while the machine runs on battery."),
    Setting("PAUSE_ON_HEAT", "0", _flag, "Training and quantizing wait while the machine is too hot."),
    Setting("HEARTBEAT_SECONDS", "15", _seconds, "Longest silence on an event stream."),
    Setting("RESUME_GRACE_SECONDS", "30", _seconds, "How long a stored stream runs on for a client that left."),
    Setting("STORE", "1", _flag, "Keep response history."),
    Setting("HISTORY_DAYS", "30", _positive, "Age at which response history is removed, days."),
    Setting("HISTORY_MB", "1024", _positive, "Size at which the oldest response history is removed, MiB."),
    Setting("DATA_ROOTS", "", _list, "Folders datasets may read besides the data directory's imports folder, comma-separated."),
    Setting("SANDBOX_IMAGE", "", str, "Container image that runs model-written code, pinned as name@sha256:...; never pulled."),
    Setting("JOB_LOG_DAYS", "90", _positive, "Age at which the log of an ended job is removed, days; its row and end stay."),
    Setting("LOG_LEVEL", "info", _one_of("debug", "info", "warning", "error"), "Least severe log line written."),
    Setting(
        "TRACES", "", _collector, "Where OpenTelemetry traces go, such as http://127.0.0.1:4318/v1/traces; empty: none are made."
    ),
    Setting("SECRET_KEY", "", str, "Django's signing key; empty: made once and kept in the data directory."),
)

#: Conventional names read beside the prefixed ones.
CONVENTIONAL = {
    "REDIS_URL": "Redis or Valkey to use; unset: an embedded Valkey is started.",
    "DATABASE_URL": "Database to use; unset: SQLite in the data directory.",
}


#: Rows in place of one chat, where the setting does not say.
ROWS_PER_SLOT = 2


@dataclass(frozen=True)
class Environment:
    """Parsed settings by lower-case name, plus the two conventional URLs ("" when unset)."""

    values: Mapping[str, Any]
    redis_url: str
    database_url: str

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def rows_at_once(self) -> int:
        """Batch rows the engine decodes at once while nobody chats."""
        return int(self.row_slots or ROWS_PER_SLOT * self.slots)


def read(environ: Mapping[str, str] = os.environ) -> Environment:
    """Parse the environment.

    Raises:
        BadSetting: a value that cannot be parsed, or an unknown ``MLXPLATFORM_`` name.
    """
    known = {PREFIX + setting.name for setting in SETTINGS}
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise BadSetting(f"{unknown[0]} is not a setting. Known settings are listed in docs/reference/settings.md.")
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        raw = environ.get(PREFIX + setting.name, "")
        if not raw and setting.short:
            raw = environ.get(setting.short, "")
        try:
            values[setting.name.lower()] = setting.parse(raw or setting.default)
        except (ValueError, RuntimeError) as error:  # RuntimeError: a home directory nobody has
            raise BadSetting(f"{PREFIX}{setting.name}={raw!r} cannot be used: {error}.") from None
    return Environment(values, environ.get("REDIS_URL", ""), environ.get("DATABASE_URL", ""))


def markdown() -> str:
    """The reference page of all settings."""
    lines = [
        "# Settings",
        "",
        "Settings are environment variables. A wrong value or an unknown `MLXPLATFORM_` name stops the start with one sentence.",
        "This page is written by `python -m mlxplatform.environment`.",
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
    ]
    for setting in SETTINGS:
        name = f"`{PREFIX}{setting.name}`" + (f", short `{setting.short}`" if setting.short else "")
        default = f"`{setting.default}`" if setting.default else "empty"
        lines.append(f"| {name} | {default} | {setting.doc} |")
    lines += ["", "Two conventional names are read as well:", "", "| variable | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {doc} |" for name, doc in CONVENTIONAL.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
