"""What a key or a person may do: scopes, the roles made of them, and the scope each request needs.

Pure data and one function of it; it knows no database and no HTTP library.
"""

from __future__ import annotations

INFERENCE = "inference"
READ = "read"
WRITE = "write"
OPERATE = "operate"
ADMIN = "admin"

#: Not a scope to hold: either of two opens it.
ASK_OR_READ = "inference or read"

#: Every scope with what it opens, as shown by the API and the pages.
SCOPES = {
    INFERENCE: "Ask models: chat, completions, responses, messages, embeddings, decisions; list them; see stored answers.",
    READ: "See jobs, files, batches, datasets, models, usage of the own project.",
    WRITE: "Submit, cancel and delete jobs, files, batches, datasets, schedules of the own project.",
    OPERATE: "Run the machine: load, pin and delete models, download them, hold queues.",
    ADMIN: "Everything, in every project, and the keys themselves.",
}

#: What a key may do when its maker names no scopes.
DEFAULT_SCOPES = (INFERENCE, READ, WRITE)

#: Groups of people; each is a Django group of the same name.
ROLES: dict[str, tuple[str, ...]] = {
    "admin": (INFERENCE, READ, WRITE, OPERATE, ADMIN),
    "operator": (INFERENCE, READ, WRITE, OPERATE),
    "member": (INFERENCE, READ, WRITE),
    "viewer": (READ,),
}

#: POST paths that ask a model rather than change something of the platform's.
_INFERENCE_PREFIXES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/decisions",
    "/v1/systemone",
    "/v1/audio",
    "/v1/images",
    "/v1/moderations",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
    "/api/show",
)
#: Batches live under inference prefixes but are durable work.
_WRITE_PREFIXES = ("/v1/messages/batches",)
#: Durable work in which models answer: it uses up the allowance of the key that ordered it.
_SPENDING_PATHS = frozenset(
    {"/v1/batches", "/v1/messages/batches", "/api/dataset/submit", "/api/dataset/preview"}
    | {"/api/memory/synthesize", "/v1/memory/synthesize"}
)
#: What concerns the whole machine rather than one project. Looking at it stays READ.
_OPERATE_PREFIXES = ("/api/models", "/api/queues", "/api/library", "/api/hub/download", "/api/hub/adopt", "/api/gc")
#: POST paths that only look.
_LOOKING_PREFIXES = ("/api/quantize/inspect", "/api/finetune/inspect-dataset", "/api/memory/tools", "/mcp/memory")
_ADMIN_PREFIXES = ("/api/keys", "/api/audit")
#: What everybody may know and administrators only may change.
_ADMIN_CHANGES = ("/api/retention",)
#: GET paths without which a key that only asks cannot ask: which models there are, and its stored answers.
_ASKING_PREFIXES = (
    "/v1/models",
    "/v1/adapters",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/conversations",
    "/api/tags",
    "/api/ps",
    "/api/version",
)
#: Of these, what shows the answers of everybody in the project.
_LISTS = frozenset({"/v1/chat/completions"})

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}


def needed(method: str, path: str) -> str:
    """The scope a request needs, by method and path."""
    if _under(path, _ADMIN_PREFIXES):
        return ADMIN
    if method in _SAFE_METHODS:
        asking = (path == "/v1" or _under(path, _ASKING_PREFIXES)) and path not in _LISTS
        return ASK_OR_READ if asking else READ
    if _under(path, _ADMIN_CHANGES):
        return ADMIN
    if _under(path, _INFERENCE_PREFIXES) and not _under(path, _WRITE_PREFIXES):
        return INFERENCE
    if _under(path, _OPERATE_PREFIXES):
        return OPERATE
    return READ if _under(path, _LOOKING_PREFIXES) else WRITE


def spends(method: str, path: str) -> bool:
    """Whether a request orders work that will use up its key's tokens."""
    return method == "POST" and path.rstrip("/") in _SPENDING_PATHS


def grants(held: frozenset[str] | tuple[str, ...], scope: str) -> bool:
    """Whether ``held`` opens ``scope``."""
    if ADMIN in held or scope in held:
        return True
    return scope == ASK_OR_READ and (INFERENCE in held or READ in held)


def _under(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in prefixes)
