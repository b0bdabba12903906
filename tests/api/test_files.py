"""The Files and Uploads API with the unmodified SDK, and what bad uploads get."""

from __future__ import annotations

import datetime as dt
import hashlib
import shutil
from typing import Any

import httpx
import openai
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from mlxplatform.accounts.models import AuditEntry
from mlxplatform.files import blobs, service
from mlxplatform.files.models import StoredFile
from tests.fixtures.sdk import openai_sdk, web  # noqa: F401  fixtures

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _no_files() -> None:
    shutil.rmtree(blobs.root(), ignore_errors=True)
    (blobs.root() / "incoming").mkdir(parents=True)


LINE = b'{"custom_id":"a"}\n'


ANCHOR = {"expires_after[anchor]": "created_at"}


async def upload(sdk: openai.AsyncOpenAI, name: str = "in.jsonl", content: bytes = LINE, **options: Any) -> Any:
    return await sdk.files.create(file=(name, content), purpose=options.pop("purpose", "batch"), **options)


def files_on_disk() -> set[str]:
    return set(blobs.stored_ids())


async def test_upload_retrieve_content_delete(openai_sdk: openai.AsyncOpenAI) -> None:  # noqa: F811
    made = await upload(openai_sdk)
    assert (made.object, made.bytes, made.filename, made.purpose, made.status) == (
        "file",
        len(LINE),
        "in.jsonl",
        "batch",
        "processed",
    )
    assert made.expires_at == pytest.approx(made.created_at + 30 * 86400, abs=2)
    assert (await openai_sdk.files.retrieve(made.id)).id == made.id
    assert (await openai_sdk.files.wait_for_processing(made.id)).id == made.id
    assert (await openai_sdk.files.content(made.id)).content == LINE
    deleted = await openai_sdk.files.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    for call in (openai_sdk.files.retrieve, openai_sdk.files.content, openai_sdk.files.delete):
        with pytest.raises(openai.NotFoundError) as missing:
            await call(made.id)
        assert missing.value.code == "file_not_found"
    await sync_to_async(service.sweep)()
    assert made.id not in files_on_disk()


async def test_auto_paging_sees_every_file_once_in_both_orders(openai_sdk: openai.AsyncOpenAI) -> None:  # noqa: F811
    made = [(await upload(openai_sdk, f"{n}.jsonl")).id for n in range(5)]
    other = (await upload(openai_sdk, "u.txt", purpose="user_data")).id
    for order, expected in (("asc", made), ("desc", made[::-1])):
        seen = [file.id async for file in openai_sdk.files.list(limit=2, order=order, purpose="batch")]
        assert seen == expected
    page = await openai_sdk.files.list(limit=5)
    assert page.has_more
    assert (page.data[0].id, page.last_id) == (other, page.data[-1].id)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=10001", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("purpose=x", "purpose"),
        ("after=file-x", "after"),
    ],
)
async def test_bad_list_parameters_are_named(web: httpx.AsyncClient, query: str, param: str) -> None:  # noqa: F811
    answer = await web.get(f"/v1/files?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_ranges_and_etags(web: httpx.AsyncClient, openai_sdk: openai.AsyncOpenAI) -> None:  # noqa: F811
    made = await upload(openai_sdk, content=b"0123456789\n")
    path = f"/v1/files/{made.id}/content"
    whole = await web.get(path)
    part = await web.get(path, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"234", "bytes 2-4/11")
    assert (await web.get(path, headers={"Range": "bytes=50-"})).status_code == 416
    assert (await web.get(path, headers={"If-None-Match": whole.headers["etag"]})).status_code == 304


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("../../../var/x.jsonl", "x.jsonl"),
        ("/var/spool/x.jsonl", "x.jsonl"),
        ("..\\..\\x.jsonl", "x.jsonl"),
        ("C:\\a\\x.jsonl", "x.jsonl"),
    ],
)
async def test_names_with_paths_are_shown_plain_and_stored_elsewhere(web: httpx.AsyncClient, given: str, shown: str) -> None:  # noqa: F811
    answer = await web.post("/v1/files", data={"purpose": "batch"}, files={"file": (given, LINE)})
    assert (answer.status_code, answer.json()["filename"]) == (200, shown)
    assert blobs.path_of(answer.json()["id"]).read_bytes() == LINE
    assert all(name.startswith("file-") for name in files_on_disk())


@pytest.mark.parametrize("name", [".", "", "..", "a/", "\x00"])
async def test_unusable_names_are_refused(web: httpx.AsyncClient, name: str) -> None:  # noqa: F811
    before = files_on_disk()
    body = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="' + name.encode() + b'"\r\n\r\n{}\r\n--b--\r\n'
    )
    answer = await web.post("/v1/files", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
    assert files_on_disk() == before


@pytest.mark.parametrize(
    ("data", "files", "param"),
    [
        ({"purpose": "batch"}, [("file", ("a.jsonl", b""))], "file"),
        ({}, [("file", ("a.jsonl", LINE))], "purpose"),
        ({"purpose": "banana"}, [("file", ("a.jsonl", LINE))], "purpose"),
        ({"purpose": "batch"}, [("file", ("notes.txt", LINE))], "file"),
        ({"purpose": "batch"}, [("file", ("a.jsonl", LINE)), ("file", ("b.jsonl", LINE))], "file"),
        ({"purpose": "batch"}, [("other", ("a.jsonl", LINE))], "file"),
        ({"purpose": "batch", **ANCHOR, "expires_after[seconds]": "5"}, [("file", ("a.jsonl", LINE))], "expires_after[seconds]"),
        ({"purpose": "batch", "expires_after[seconds]": "3600"}, [("file", ("a.jsonl", LINE))], "expires_after[anchor]"),
    ],
)  # fmt: skip
async def test_bad_uploads_name_the_field_and_leave_nothing(web: httpx.AsyncClient, data: Any, files: Any, param: str) -> None:  # noqa: F811
    before = files_on_disk()
    answer = await web.post("/v1/files", data=data, files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert files_on_disk() == before
    assert not await StoredFile.objects.aexists()


async def test_no_multipart_no_file_part_and_broken_bodies(web: httpx.AsyncClient) -> None:  # noqa: F811
    assert (await web.post("/v1/files", json={"purpose": "batch"})).status_code == 415
    only_fields = await web.post("/v1/files", files={"purpose": (None, "batch")})
    assert (only_fields.status_code, only_fields.json()["error"]["param"]) == (400, "file")
    for body, kind in ((b"--x\r\nrubbish", "multipart/form-data; boundary=x"), (b"", "multipart/form-data")):
        answer = await web.post("/v1/files", content=body, headers={"Content-Type": kind})
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_a_file_above_the_limit_is_413(web: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(service, "size_limit", lambda: 10)
    answer = await web.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"x" * 11)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")
    assert not list((blobs.root() / "incoming").iterdir())


async def test_a_full_disk_is_a_clear_answer_and_leaves_nothing(web: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blobs, "publish", full)
    answer = await web.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", LINE)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "disk_full")
    assert not list((blobs.root() / "incoming").iterdir())


async def test_expired_files_are_gone_and_swept_unless_needed(
    openai_sdk: openai.AsyncOpenAI,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, gone = (await upload(openai_sdk)).id, (await upload(openai_sdk)).id
    await StoredFile.objects.aupdate(expires_at=timezone.now() - dt.timedelta(seconds=1))
    with pytest.raises(openai.NotFoundError):
        await openai_sdk.files.retrieve(kept)
    monkeypatch.setattr(service, "holders", [lambda ids: {kept}])
    await sync_to_async(service.sweep)()
    assert kept in files_on_disk()
    assert gone not in files_on_disk()


async def test_an_upload_in_parts(openai_sdk: openai.AsyncOpenAI) -> None:  # noqa: F811
    content = b"".join(b'{"n":%d}\n' % n for n in range(1000))
    made = await openai_sdk.uploads.create(
        bytes=len(content), filename="big.jsonl", mime_type="application/jsonl", purpose="fine-tune"
    )
    half = len(content) // 2
    second = await openai_sdk.uploads.parts.create(made.id, data=content[half:])
    first = await openai_sdk.uploads.parts.create(made.id, data=content[:half])
    with pytest.raises(openai.BadRequestError) as short:
        await openai_sdk.uploads.complete(made.id, part_ids=[first.id])
    assert short.value.code == "bytes_mismatch"
    with pytest.raises(openai.BadRequestError):
        await openai_sdk.uploads.complete(made.id, part_ids=[first.id, second.id], md5="0" * 32)
    done = await openai_sdk.uploads.complete(made.id, part_ids=[first.id, second.id], md5=hashlib.md5(content).hexdigest())
    assert (done.status, done.file.bytes, done.file.purpose) == ("completed", len(content), "fine-tune")
    assert (await openai_sdk.files.content(done.file.id)).content == content
    with pytest.raises(openai.BadRequestError):
        await openai_sdk.uploads.cancel(made.id)
    await sync_to_async(service.sweep)()
    assert files_on_disk() == {done.file.id}
    entry = await AuditEntry.objects.aget(target=done.file.id)
    assert (entry.action, entry.after["upload"]) == ("file.create", made.id)


async def test_cancelled_and_expired_uploads_take_no_parts(openai_sdk: openai.AsyncOpenAI) -> None:  # noqa: F811
    made = await openai_sdk.uploads.create(bytes=3, filename="a.jsonl", mime_type="application/jsonl", purpose="batch")
    assert (await openai_sdk.uploads.cancel(made.id)).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        await openai_sdk.uploads.parts.create(made.id, data=b"x")
    with pytest.raises(openai.NotFoundError):
        await openai_sdk.uploads.cancel("upload_x")
    for field, value in (("bytes", 0), ("bytes", True), ("purpose", "x"), ("filename", "../"), ("bytes", None)):
        body = {"bytes": 3, "filename": "a.jsonl", "mime_type": "x", "purpose": "batch", field: value}
        with pytest.raises(openai.BadRequestError) as bad:
            await openai_sdk.post("/uploads", body=body, cast_to=object)
        assert bad.value.param == ("file" if value == "../" else field)
