"""Reading a multipart upload: form fields in memory, file parts straight into the incoming folder.

Django has spooled and bounded the request body before this runs; here each file part is written once more, to
where one rename publishes it. Several file parts, none, or a broken body are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation, TooManyFilesSent
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParserError

from mlxplatform.files import blobs
from mlxplatform.files.names import base_name
from mlxplatform.inference.contract import Refusal


@dataclass(frozen=True)
class Form:
    """The text fields and the one file of an upload."""

    fields: dict[str, str]
    filename: str
    file: BinaryIO

    def pieces(self) -> Iterator[bytes]:
        self.file.seek(0)
        while piece := self.file.read(blobs.PIECE):
            yield piece


def read_form(request: HttpRequest, file_field: str) -> Form:
    """The parts of a multipart request. Call it in a thread: it reads the body.

    Raises:
        Refusal: not multipart, broken, or not exactly one file in ``file_field``.
    """
    if request.content_type != "multipart/form-data":
        raise Refusal(415, "unsupported_media_type", "Send multipart/form-data.", param=file_field)
    request.upload_handlers = [TemporaryFileUploadHandler(request)]
    try:
        fields, files = request.POST, request.FILES
    except (MultiPartParserError, UnicodeDecodeError, TooManyFilesSent, RequestDataTooBig, SuspiciousOperation):
        raise Refusal(400, "invalid_multipart", "The multipart body could not be read.", param=file_field) from None
    uploaded = [part for name in files for part in files.getlist(name)]
    if not uploaded:
        as_text = file_field in fields
        hint = " The part has no filename." if as_text else ""
        raise Refusal(400, "missing_required_parameter", f"Missing required parameter: '{file_field}'.{hint}", param=file_field)
    if len(uploaded) > 1:
        raise Refusal(400, "too_many_files", "Send exactly one file.", param=file_field)
    if file_field not in files:
        raise Refusal(400, "missing_required_parameter", f"The file must be in the field '{file_field}'.", param=file_field)
    part: UploadedFile = uploaded[0]
    content = cast(BinaryIO, part.file)
    return Form({name: str(value) for name, value in fields.items()}, base_name(part.name or ""), content)
