"""The form of a transcription: text fields beside one file, checked like the fields of a JSON body; or that body itself,
with the file in base64."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Literal

from django.http import HttpRequest

from mlxplatform.api.audio.languages import code_of
from mlxplatform.api.fields import (
    Check,
    Fields,
    Table,
    described,
    honoured,
    ignored,
    list_of,
    number,
    one_of,
    read_fields,
    refused,
    table,
    text,
    wrong_type,
    wrong_value,
)
from mlxplatform.api.running import Asked
from mlxplatform.files.receiving import read_form
from mlxplatform.inference.client import new_id
from mlxplatform.inference.contract import Audio, InferenceRequest, Refusal

MIB = 1024 * 1024
#: Largest recording, bytes; OpenAI's limit.
MOST_BYTES = 25 * MIB
FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
#: Names by which clients of OpenAI's ask for several values.
_LISTS = {"timestamp_granularities": "timestamp_granularities[]", "include": "include[]"}
_NUMBER = re.compile(r"^[+-]?(\d+\.?\d*|\.\d+)\Z")


def form_number(minimum: float, maximum: float) -> Check:
    check = number(minimum, maximum)

    def read(raw: Any, param: str) -> Any:
        if not isinstance(raw, str) or not _NUMBER.match(raw):
            raise wrong_type(param, "a number", raw)
        return check(float(raw), param)

    return described(read, type="number", minimum=minimum, maximum=maximum)


def form_flag(raw: Any, param: str) -> bool:
    if not isinstance(raw, str) or raw.lower() not in {"true", "false", "1", "0"}:
        raise wrong_value(param, "use true or false.")
    return raw.lower() in {"true", "1"}


def granularities(raw: Any, param: str) -> list[str]:
    values: list[str] = list_of(one_of("word", "segment"))(raw, param)
    return values


described(form_flag, type="boolean")
described(granularities, type="array", items={"type": "string", "enum": ["word", "segment"]})


def language(raw: Any, param: str) -> str:
    """A code, "" for one that is to be found out."""
    name = text(32)(raw, param)
    if name.strip().lower() == "auto":
        return ""
    code = code_of(name)
    if code is None:
        raise wrong_value(param, f"'{name}' is no language known here; use a code such as 'en'.")
    return code


described(language, type="string")


def recording(raw: Any, param: str) -> Any:
    return raw


described(recording, type="string", format="binary")

TRANSLATION_FIELDS: Table = table(
    honoured("file", recording, f"up to {MOST_BYTES // MIB} MiB; WAV, and more where ffmpeg is installed", required=True),
    honoured("model", text(), "unknown names: see routing"),
    honoured("prompt", text(), "words that may come"),
    honoured("response_format", one_of(*FORMATS)),
    honoured("temperature", form_number(0, 1), "absent: 0, and more where the text looks wrong"),
)
TRANSCRIPTION_FIELDS: Table = {
    **TRANSLATION_FIELDS,
    **table(
        honoured("language", language, "a code such as en; absent or auto: found out"),
        honoured("timestamp_granularities", granularities, "needs verbose_json"),
        honoured("stream", form_flag, "needs json or text"),
        refused("include", "Logprobs of transcriptions are not kept.", []),
        refused("known_speaker_names", "Speakers are not told apart."),
        refused("known_speaker_references", "Speakers are not told apart."),
        ignored("chunking_strategy", "long recordings are always cut"),
    ),
}


def read_request(http: HttpRequest, task: Literal["transcribe", "translate"]) -> tuple[Asked, bytes]:
    """The request and the recording. Call it in a thread: it reads the body.

    Raises:
        Refusal: 400 naming the field, 413 too large, 415 not a form.
    """
    form = read_form(http, "file")
    sound = _bounded(form.file.read(MOST_BYTES + 1))
    return parse(_fields_of(http), task), sound


def read_object(body: Mapping[str, Any], task: Literal["transcribe", "translate"]) -> tuple[Asked, bytes]:
    """The same from a JSON body, whose ``file`` is base64 or a ``data:`` URL.

    Raises:
        Refusal: 400 naming the field, 413 too large.
    """
    asked = parse({name: _as_text(value) for name, value in body.items()}, task)
    raw = text()(body.get("file"), "file")
    if raw.startswith("data:"):
        head, _, raw = raw.partition(",")
        if not head.endswith(";base64"):
            raise wrong_value("file", "a data: URL must be in base64.")
    try:
        sound = base64.b64decode(raw, validate=True)
    except ValueError:
        raise wrong_value("file", "it is not base64.") from None
    return asked, _bounded(sound)


def _as_text(value: Any) -> Any:
    """A JSON scalar as a form would carry it; what is none stays, and is refused by its check."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


def _bounded(sound: bytes) -> bytes:
    if len(sound) > MOST_BYTES:
        raise Refusal(413, "request_too_large", f"The recording is larger than {MOST_BYTES // MIB} MiB.", param="file")
    if not sound:
        raise wrong_value("file", "the recording is empty.")
    return sound


def _fields_of(http: HttpRequest) -> dict[str, Any]:
    """The form's fields by their plain names; an empty value is an absent one."""
    body: dict[str, Any] = {"file": "file"}
    for name in http.POST:
        plain = name.removesuffix("[]")
        values = [str(value) for value in http.POST.getlist(name) if value != ""]
        if values:
            body[plain] = [*body.get(plain, []), *values] if plain in _LISTS else values[-1]
    return body


def parse(body: Mapping[str, Any], task: Literal["transcribe", "translate"]) -> Asked:
    """
    Raises:
        Refusal: 400 naming the field.
    """
    fields = read_fields(body, TRANSCRIPTION_FIELDS if task == "transcribe" else TRANSLATION_FIELDS)
    form = fields.get("response_format", "json")
    wanted = fields.get("timestamp_granularities", [])
    if wanted and form != "verbose_json":
        raise wrong_value("timestamp_granularities", "only allowed when 'response_format' is 'verbose_json'.")
    if fields.get("stream") and form not in {"json", "text"}:
        raise wrong_value("stream", f"not possible with 'response_format' '{form}'.")
    request = InferenceRequest(id=new_id("trs_"), model="", kind="transcription", audio=_audio(fields, task, "word" in wanted))
    return Asked(
        requests=(request,),
        model=fields.get("model"),
        stream=fields.get("stream", False),
        ignored=fields.ignored,
        extra={"format": form, "task": task, "granularities": wanted or ["segment"]},
    )


def _audio(fields: Fields, task: Literal["transcribe", "translate"], words: bool) -> Audio:
    return Audio(task, fields.get("language") or None, fields.get("prompt"), fields.get("temperature"), words)
