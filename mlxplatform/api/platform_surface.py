"""The operations that no field table describes: jobs, files, data, training, memory and the rest, for the API schema.

One line each: method, path, what it does; ``?`` begins the names of its query, ``:`` those of its body. Names only: what
each may hold is checked, and explained when it is wrong, where the body is read. A test compares the list with the routes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mlxplatform.http.fields import Field
from mlxplatform.library import presets
from mlxplatform.training import evaluation, finetuning, quantization

_LINES = """
# Status
get /livez | Whether this web process answers
get /metrics | Figures for Prometheus
get /v1 | What is served here
get /api/hosts | The machines with a GPU and what they have
get /api/schema | This document
get /api/docs | The same as a page
get /api/lease | Who uses the GPU and who waits ? host
get /api/queues | The queues: waiting, running, held
post /api/queues/{queue}/pause | Hold a queue: nothing more of it starts
post /api/queues/{queue}/resume | Release a held queue

# Models
get /library | The models in the data directory
get /api/hub/local | The same, under the older name
get /fit | Whether a model fits this machine ? model context
get /downloads | The newest downloads
get /api/hub/search | Search the hub ? q limit
post /api/hub/download | Download a model : repo_id model revision
get /api/hub/foreign | Models that other programs keep on this machine
post /api/hub/adopt | Import one of them : source name model
get /api/hub/token | Which token the project has for the hub; never the token
put /api/hub/token | Keep a token for the hub : token
delete /api/hub/token | Forget it
get /api/presets/fields | What a preset may hold
get /api/library/{model_id}/preset | The model's preset
put /api/library/{model_id}/preset | Replace the preset
delete /api/library/{model_id}/preset | Remove the preset
post /api/library/{model_id}/default | Let this model answer when none is named
delete /api/library/{model_id}/default | No longer
delete /api/library/{model_id} | Delete a model of the data directory
get /api/models/{model_id}/plan | What loading the model would take
post /api/models/{model_id}/pin | Keep the model in memory
post /api/models/{model_id}/unpin | Let it leave memory again
post /api/models/{model_id}/load | Load the model now
post /api/models/{model_id}/unload | Take it out of memory
get /api/gc/plan | What could be deleted to free the disk
post /api/gc/execute | Delete what the plan names : yes items

# Jobs
get /api/jobs | Jobs, newest first ? kind state status parent after limit
get /api/jobs.csv | The same as a table ? kind state status parent
get /api/jobs/{job_id} | One job, and why it waits
get /api/jobs/{job_id}/stream | Its events as they happen ? after
get /api/jobs/{job_id}/events | Its whole log as JSON Lines
post /api/jobs/{job_id}/cancel | Cancel a job
post /api/jobs/{job_id}/retry | Do the work again as a new job
post /api/jobs/{job_id}/pause | Pause a job
post /api/jobs/{job_id}/resume | Resume a paused job
post /api/jobs/bulk/cancel | Cancel several jobs : ids kind state
post /api/jobs/bulk/retry | Retry several jobs : ids kind state
post /api/jobs/bulk/pause | Pause several jobs : ids kind state
post /api/jobs/bulk/resume | Resume several jobs : ids kind state
get /api/webhooks | Who is told about ended jobs
post /api/webhooks | Tell an address about ended jobs : url events job
get /api/webhooks/{webhook_id} | One webhook with its last deliveries
delete /api/webhooks/{webhook_id} | Remove a webhook
get /api/schedules | Schedules
post /api/schedules | Make a schedule : name kind cron config timezone misfire grace_seconds paused
get /api/schedules/{schedule_id} | One schedule with its next times
patch /api/schedules/{schedule_id} | Change a schedule : name kind cron config timezone misfire grace_seconds paused
delete /api/schedules/{schedule_id} | Remove a schedule
get /api/schedules/{schedule_id}/firings | What became of past times
post /api/schedules/{schedule_id}/pause | Pause a schedule
post /api/schedules/{schedule_id}/resume | Resume a schedule
post /api/schedules/{schedule_id}/run | Do it once now

# Files and batches
get /v1/files | Files ? purpose order limit after
post /v1/files | Upload a file (a form) : file purpose expires_after[anchor] expires_after[seconds]
get /v1/files/{file_id} | What is known of a file
delete /v1/files/{file_id} | Delete a file
get /v1/files/{file_id}/content | The file's content
post /v1/uploads | Begin an upload in parts : filename purpose bytes mime_type expires_after
post /v1/uploads/{upload_id}/parts | Send one part (a form) : data
post /v1/uploads/{upload_id}/complete | Put the parts together : part_ids md5
post /v1/uploads/{upload_id}/cancel | Cancel an upload
get /v1/batches | OpenAI's batches ? limit after
post /v1/batches | Make a batch : input_file_id endpoint completion_window metadata output_expires_after
get /v1/batches/{batch_id} | One batch
post /v1/batches/{batch_id}/cancel | Cancel a batch
get /v1/messages/batches | Anthropic's batches ? limit after_id before_id
post /v1/messages/batches | Make a batch : requests
get /v1/messages/batches/{batch_id} | One batch
delete /v1/messages/batches/{batch_id} | Delete an ended batch
post /v1/messages/batches/{batch_id}/cancel | Cancel a batch
get /v1/messages/batches/{batch_id}/results | Its results as JSON Lines

# Conversations and stored answers
post /v1/chat/completions/{completion_id} | Change the metadata of a stored completion : metadata
post /v1/conversations/{conversation_id} | Change the metadata of a conversation : metadata
get /v1/conversations/{conversation_id}/items/{item_id} | One item
delete /v1/conversations/{conversation_id}/items/{item_id} | Remove an item

# Protocols without an engine here
post /v1/moderations | Answers 501
post /v1/responses/compact | Answers 501: conversations are not compacted here
post /v1/images/generations | Answers 501
post /v1/images/edits | Answers 501
post /v1/images/variations | Answers 501
post /v1/audio/speech | Answers 501
post /api/embeddings | Ollama's older embeddings : model prompt
get /api/ps | Ollama's list of models in memory
post /api/show | Ollama's description of a model : model name
get /api/version | The version, as Ollama's clients ask for it

# Datasets
get /api/dataset/templates | Templates with their fields
post /api/dataset/preview | Try a template on a few rows : template inputs model rows seed filters
post /api/dataset/submit | Make a dataset : template inputs model name description tags rows seed filters dataset
get /api/datasets | Datasets ? template tag q archived after limit
post /api/datasets | Make a dataset : template inputs model name description tags rows seed filters dataset
post /api/datasets/import | Import rows : file_id path hub revision name description tags format columns on_bad_rows
get /api/datasets/{dataset_id} | One dataset
patch /api/datasets/{dataset_id} | Change what it is called : name description tags archived
get /api/datasets/{dataset_id}/versions | Its versions
get /api/datasets/{dataset_id}/diff | What differs between two versions ? from to
get /api/datasets/{dataset_id}/rows | Rows of a version ? version state reason split q after limit
get /api/datasets/{dataset_id}/rows/{ordinal} | One row and how it was made ? version
get /api/datasets/{dataset_id}/files | Files of a version ? version
get /api/datasets/{dataset_id}/files/{name} | One of these files ? version
get /api/datasets/{dataset_id}/export | A version in another format ? version format split
post /api/datasets/{dataset_id}/push | Push a version to the hub : repo version private message

# Training
post /api/quantize/inspect | What quantizing a model would give : model model_id
post /api/quantize/submit | Quantize a model
get /api/quantize/reports | Reports of past runs ? baseline
get /api/quantize/reports/{job_id} | One report
get /api/finetune/fields | Every field of a fine-tune with its limits
post /api/finetune/inspect-dataset | Whether data can be trained on : dataset training_file validation_file method
post /api/finetune/submit | Fine-tune a model
post /api/finetune/fuse | Make a model of an adapter
post /api/finetune/merge | Make one adapter of several : adapters suffix
post /api/finetune/export | Export an adapter
post /api/finetune/evaluate | Score a model on rows held back
post /api/finetune/{job_id}/finish | Stop at the next step and keep what there is
get /api/finetune/{job_id}/curve | The run's figures by step
get /api/comparisons | Blind votes by pair of models ? model
post /api/comparisons | One blind vote : models winner question
get /api/adapters | Adapters ? base_model method job
get /api/adapters/{adapter_id} | One adapter
delete /api/adapters/{adapter_id} | Delete an adapter
get /v1/fine_tuning/jobs | OpenAI's fine-tuning jobs ? limit after
post /v1/fine_tuning/jobs | Make one : model training_file validation_file method hyperparameters suffix seed metadata
get /v1/fine_tuning/jobs/{job_id} | One job
post /v1/fine_tuning/jobs/{job_id}/cancel | Cancel it
post /v1/fine_tuning/jobs/{job_id}/pause | Pause it
post /v1/fine_tuning/jobs/{job_id}/resume | Resume it
get /v1/fine_tuning/jobs/{job_id}/events | Its events ? limit after
get /v1/fine_tuning/jobs/{job_id}/checkpoints | Its checkpoints ? limit after

# Memory
get /api/memory/vaults | The project's vaults
post /api/memory/vaults | Make a vault : name policy hand_edits model
post /api/memory/init | The same, under the older name : name policy hand_edits model
patch /api/memory/vaults/{name} | Change a vault's settings : policy hand_edits model min_chunks note_chars own_history
get /api/memory/status | What a vault holds and what waits ? vault
get /api/memory/list | Its pages ? vault folder
get /api/memory/search | Search the pages ? vault q scope limit mode
get /api/memory/article | One page ? vault name folder
get /api/memory/toc | A page's headings ? vault name
get /api/memory/section | One section ? vault name section
get /api/memory/links | Links to and from a page ? vault name
get /api/memory/history | Commits ? vault name limit
get /api/memory/diff | What a commit changed ? vault name rev
get /api/memory/tools | Tools that read the memory
post /api/memory/tools/{name} | Call one of them : vault arguments
post /mcp/memory | The tools over the Model Context Protocol
post /api/memory/import | Read an export of conversations : vault format file_id content name source complete
get /api/memory/synthesize | What a run would have to do ? vault
post /api/memory/synthesize | Start a run : vault model stream dry
get /v1/memory/synthesize | What a run would have to do ? vault
post /v1/memory/synthesize | Start a run : vault model stream dry
get /api/memory/runs | Runs ? vault limit
get /api/memory/runs/{run_id} | One run
post /api/memory/runs/{run_id}/revert | Undo what a run changed
get /api/memory/changes | Proposed changes ? vault state page limit
get /api/memory/changes/{change_id} | One change
post /api/memory/changes/{change_id}/accept | Accept a change, as it is or edited : text base
post /api/memory/changes/{change_id}/reject | Reject a change
post /api/memory/changes/{change_id}/revert | Undo an accepted change
post /api/memory/forget | Forget a conversation, a statement or a page : vault conversation source id statement page
get /api/memory/questions | Questions that measure the memory ? vault
post /api/memory/questions | Add a question : vault question expected negative
delete /api/memory/questions/{question_id} | Remove a question

# Data
get /api/data | What the project has stored here, or what one key or person made of it ? made_by
delete /api/data | Delete it : project made_by
get /api/retention | How long things are kept
patch /api/retention | Change it; null takes the environment's value : history_days history_mb job_log_days
"""


@dataclass(frozen=True)
class Described:
    """One operation by the names that it knows."""

    method: str
    path: str
    tag: str
    title: str
    query: tuple[str, ...]
    body: tuple[str, ...]

    @property
    def form(self) -> bool:
        return "(a form)" in self.title


def _described(line: str, tag: str) -> Described:
    route, _, rest = line.partition(" | ")
    method, path = route.split(" ")
    rest, _, body = rest.partition(" : ")
    title, _, query = rest.partition(" ? ")
    return Described(method, path, tag, title.strip(), tuple(query.split()), tuple(body.split()))


def _read(lines: str) -> tuple[Described, ...]:
    found, tag = [], ""
    for line in filter(None, lines.splitlines()):
        if line.startswith("# "):
            tag = line[2:]
        else:
            found.append(_described(line, tag))
    return tuple(found)


PLATFORM: tuple[Described, ...] = _read(_LINES)


#: Bodies whose fields are a table already.
_TABLES: dict[tuple[str, str], Iterable[Field]] = {
    ("put", "/api/library/{model_id}/preset"): presets.FIELDS,
    ("post", "/api/quantize/submit"): quantization.FIELDS,
    ("post", "/api/finetune/submit"): finetuning.FIELDS,
    ("post", "/api/finetune/evaluate"): evaluation.FIELDS,
}
_TYPES: dict[str, dict[str, Any]] = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "text": {"type": "string"},
    "names": {"type": "array", "items": {"type": "string"}},
    "numbers": {"type": "array", "items": {"type": "integer"}},
    "object": {"type": "object"},
}


def operation(described: Described, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    """The OpenAPI operation, less what all operations share."""
    query = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in described.query]
    found: dict[str, Any] = {"summary": described.title, "tags": [described.tag], "parameters": [*parameters, *query]}
    body = _body(described)
    if body is not None:
        kind = "multipart/form-data" if described.form else "application/json"
        found["requestBody"] = {"content": {kind: {"schema": body}}}
    return found


def _body(described: Described) -> dict[str, Any] | None:
    table = _TABLES.get((described.method, described.path))
    if table is not None:
        required = [field.name for field in table if field.required]
        properties = {field.name: _schema(field) for field in table}
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}
    if not described.body:
        return None
    properties = {name: {} for name in described.body}
    if described.form:
        properties[described.body[0]] = {"type": "string", "format": "binary"}
    return {"type": "object", "properties": properties}


def _schema(field: Field) -> dict[str, Any]:
    schema = {**_TYPES[field.kind], "description": field.doc, "nullable": not field.required}
    if field.kind in {"int", "float"}:
        schema |= {name: value for name, value in (("minimum", field.low), ("maximum", field.high)) if value is not None}
    if field.choices:
        schema["enum"] = [*field.choices, *([] if field.required else [None])]
    return schema
