"""Names shared by whoever enqueues and whoever consumes: queues, actors, Redis keys and channels.

Queues are per host and class (``<class>.<host>``); the client places work by choosing the host. Actors are
enqueued by name, so the web process imports no worker module.

Redis keys owned by the platform (namespace ``mlxp``), besides Dramatiq's under ``dramatiq:``:

=========================  ======  =============================================================
``mlxp:request:<id>``      string  msgpack InferenceRequest, from submit until it is picked up
``mlxp:frames:<web>``      pubsub  msgpack list[Delivery] for one web process
``mlxp:control:<host>``    list    msgpack control messages for one gpu process (cancel, ...)
``mlxp:host:<host>``       string  JSON of the host's live state, expires with its heartbeat
``mlxp:events:<request>``  stream  events of a stored or background request, id = event number
``mlxp:audio:<request>``   string  the recording of a transcription, until it is picked up
``mlxp:pictures:<call>``    string  msgpack list[bytes], the image files of a call, until it has ended
``mlxp:alive:<request>``   string  a gpu process works on this stored or background request
``mlxp:viewer:<request>``  string  somebody watches this stored request, or may come back for it
``mlxp:jobs``              pubsub  ids of jobs that have new events ("there is more")
``mlxp:rows:<job>``        pubsub  "there are new row results" for the job's orchestrator
``{mlxp:lease:<host>}:*``  mixed   the GPU lease, see lease.lua
=========================  ======  =============================================================
"""

from __future__ import annotations

NAMESPACE = "mlxp"

#: cpu workers: orchestration of batches and datasets, imports, downloads, webhooks, exports.
CPU_QUEUE = "cpu"

#: Actor names.
GENERATE = "generate"
RUN_CHUNK = "run_chunk"
RUN_JOB = "run_job"

#: Seconds after which a request nobody picked up is forgotten by Redis.
REQUEST_TTL = 600
#: Seconds a host's live state outlives its last heartbeat.
HOST_TTL = 6
#: Seconds between two looks of a gpu process at its stored requests, in which it says that they are alive.
STORED_LOOK = 2.0
#: Seconds the word that a stored request is alive outlives the last look.
ALIVE_TTL = 15


def interactive(host: str) -> str:
    return f"interactive.{host}"


def rows(host: str) -> str:
    return f"rows.{host}"


def gpu_jobs(host: str) -> str:
    """Trainer jobs (quantize, finetune) of one host."""
    return f"gpujobs.{host}"


def request_key(request_id: str) -> str:
    return f"{NAMESPACE}:request:{request_id}"


def frames_channel(web_id: str) -> str:
    return f"{NAMESPACE}:frames:{web_id}"


def control_key(host: str) -> str:
    return f"{NAMESPACE}:control:{host}"


def host_key(host: str) -> str:
    return f"{NAMESPACE}:host:{host}"


def events_key(request_id: str) -> str:
    return f"{NAMESPACE}:events:{request_id}"


def audio_key(request_id: str) -> str:
    return f"{NAMESPACE}:audio:{request_id}"


def pictures_key(call_id: str) -> str:
    return f"{NAMESPACE}:pictures:{call_id}"


def alive_key(request_id: str) -> str:
    return f"{NAMESPACE}:alive:{request_id}"


def viewer_key(request_id: str) -> str:
    return f"{NAMESPACE}:viewer:{request_id}"


JOBS_CHANNEL = f"{NAMESPACE}:jobs"


def rows_channel(job_id: str) -> str:
    return f"{NAMESPACE}:rows:{job_id}"
