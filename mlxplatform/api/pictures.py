"""Pictures of a request: checked, fetched where they are elsewhere, and laid beside the request for its host.

Knows data URLs, bare base64 and http(s); decodes no pixels, that is done in a process of its own on the host. An address
inside one's own network is refused unless the operator allows it, also when a redirect or a second look-up leads there.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count
from ssl import SSLContext

import httpx
import msgspec
from asgiref.sync import sync_to_async
from django.conf import settings

from mlxplatform.api.conversation import media_refusal
from mlxplatform.broker import queues
from mlxplatform.broker.connections import BROKER_ERRORS, async_client
from mlxplatform.inference.client import BROKER_DOWN
from mlxplatform.inference.contract import Image, InferenceRequest, Message, Refusal
from mlxplatform.inference.placement import ServedModel
from mlxplatform.webhooks import addresses

MIB = 1024 * 1024
#: Pictures of one request, and bytes of each file: what a phone's camera makes fits.
MOST_PICTURES, MOST_BYTES = 32, 20 * MIB
#: Bytes of all pictures of one request: they lie in memory here and in the broker.
MOST_BYTES_TOGETHER = 64 * MIB
#: Seconds until a picture elsewhere must be here, and pages that may send on to another.
FETCH_SECONDS, MOST_REDIRECTS = 10.0, 3
#: Addresses of one name that are tried.
ADDRESSES = 2
#: Seconds a picture lies in the broker: as long as its request may wait, and a day where another process may take it up again.
KEPT_SECONDS, KEPT_LONG_SECONDS = queues.REQUEST_TTL, 86_400
#: How the files begin that are pictures; whether they really are is for the host to see.
BEGINNINGS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")


class Room:
    """What the pictures of one request may still take, in bytes. Counted as they come, so that nobody holds more."""

    def __init__(self) -> None:
        self.left = MOST_BYTES_TOGETHER

    def take(self, size: int, param: str) -> None:
        """
        Raises:
            Refusal: the pictures are too large together.
        """
        self.left -= size
        if self.left < 0:
            most = MOST_BYTES_TOGETHER // MIB
            raise Refusal(400, "image_too_large", f"The pictures are larger than {most} MiB together.", param=param)


async def beside(model: ServedModel, requests: Sequence[InferenceRequest]) -> tuple[InferenceRequest, ...]:
    """The requests of one call with their pictures in the broker; all of them have the same messages.

    Raises:
        Refusal: the model takes none, a picture is none or cannot be had.
    """
    images = requests[0].images
    if not images:
        return tuple(requests)
    if not model.entry.get("vision"):
        raise media_refusal("image", images[0].param)
    if not model.entry.get("sees"):
        message = "This server cannot show pictures to its models: what that takes is not installed, or it is switched off."
        raise Refusal(503, "model_unavailable", message, param=images[0].param)
    if len(images) > MOST_PICTURES:
        raise Refusal(400, "too_many_images", f"At most {MOST_PICTURES} pictures in one request.", param=images[0].param)
    room = Room()
    files = await asyncio.gather(*(_file(image, room) for image in images))
    key = requests[0].id
    try:
        await async_client().set(queues.pictures_key(key), msgspec.msgpack.encode(files), ex=KEPT_SECONDS)
    except BROKER_ERRORS:
        raise Refusal(503, *BROKER_DOWN, retry_after=2) from None
    numbers = count()
    messages = [_without_sources(message, numbers) for message in requests[0].messages]
    return tuple(msgspec.structs.replace(request, messages=messages, pictures=key) for request in requests)


async def keep(request: InferenceRequest) -> None:
    """Of a request that outlives this process: its pictures lie longer."""
    if request.pictures:
        try:
            await async_client().expire(queues.pictures_key(request.pictures), KEPT_LONG_SECONDS)
        except BROKER_ERRORS:
            return  # the request is on its way with them; only another process might come too late for them


async def forget(request: InferenceRequest) -> None:
    """The call has ended."""
    if request.pictures:
        try:
            await async_client().delete(queues.pictures_key(request.pictures))
        except BROKER_ERRORS:
            return  # they go by themselves


def _without_sources(message: Message, numbers: Iterator[int]) -> Message:
    if not message.images:
        return message
    bare = [msgspec.structs.replace(image, source="", number=next(numbers)) for image in message.images]
    return msgspec.structs.replace(message, images=bare)


async def _file(image: Image, room: Room) -> bytes:
    source = image.source
    if source.startswith(("http://", "https://")):
        raw = await _fetched(source, image.param, room)
    else:
        raw = await sync_to_async(_unpacked, thread_sensitive=False)(source, image.param)
        room.take(len(raw), image.param)
    if not raw.startswith(BEGINNINGS):
        raise _bad(image.param, "it is no picture of a kind known here: PNG, JPEG, WebP, GIF, BMP or TIFF.")
    return raw


def _unpacked(source: str, param: str) -> bytes:
    """The bytes of a data URL or of bare base64."""
    packed = source
    if source.startswith("data:"):
        head, comma, packed = source.partition(",")
        if not comma or not head.endswith(";base64"):
            raise _bad(param, "a data: URL must be in base64.")
    elif "://" in source[:20]:
        raise _bad(param, "only http://, https:// and data: URLs are read.")
    try:
        raw = base64.b64decode("".join(packed.split()), validate=True)
    except (binascii.Error, ValueError):
        raise _bad(param, "it is neither a URL nor base64.") from None
    if len(raw) > MOST_BYTES:
        raise _too_large(param)
    return raw


async def _fetched(url: str, param: str, room: Room) -> bytes:
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            for _ in range(MOST_REDIRECTS + 1):
                found = await _page(url, param, room)
                if isinstance(found, bytes):
                    return found
                url = found
    except TimeoutError:
        raise _bad(param, f"its server gave no whole answer within {FETCH_SECONDS:.0f} s.") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError, ValueError):
        raise _bad(param, "its server cannot be reached.") from None
    raise _bad(param, f"its server sends on more than {MOST_REDIRECTS} times.")


async def _page(url: str, param: str, room: Room) -> bytes | str:
    """The file, or where it is instead."""
    there = httpx.URL(url)
    if there.scheme not in {"http", "https"} or not there.host or there.userinfo:
        raise _bad(param, "its URL must begin with http:// or https:// and name a host, without a password.")
    port = there.port or (443 if there.scheme == "https" else 80)
    allowed = settings.ENV.private_images
    found = await sync_to_async(addresses.resolve, thread_sensitive=False)(there.host, port, private_allowed=allowed)
    if not found:
        raise _bad(param, "its URL does not lead to a public address.")
    for address in found[:ADDRESSES]:
        try:
            return await _from(address, there, param, room)
        except httpx.ConnectError:
            continue
    raise httpx.ConnectError("none of its addresses answers")


async def _from(address: str, there: httpx.URL, param: str, room: Room) -> bytes | str:
    """Ask this very address, as the name: the certificate and the Host header are the name's."""
    named = {"host": there.netloc.decode("ascii"), "accept": "image/*"}
    # No proxy from the environment: it would look the name up for itself.
    async with httpx.AsyncClient(
        timeout=FETCH_SECONDS, follow_redirects=False, trust_env=False, verify=_certificates()
    ) as client:
        request = client.build_request(
            "GET", there.copy_with(host=address), headers=named, extensions={"sni_hostname": there.host}
        )
        response = await client.send(request, stream=True)
        try:
            if response.has_redirect_location:
                return str(there.join(response.headers["location"]))
            if response.status_code != httpx.codes.OK:
                raise _bad(param, f"its server answered {response.status_code}.")
            raw = bytearray()
            async for piece in response.aiter_bytes():
                raw += piece
                room.take(len(piece), param)
                if len(raw) > MOST_BYTES:
                    raise _too_large(param)
            return bytes(raw)
        finally:
            await response.aclose()


@cache
def _certificates() -> SSLContext:
    return httpx.create_ssl_context()


def _bad(param: str, why: str) -> Refusal:
    return Refusal(400, "invalid_image", f"The picture cannot be taken: {why}", param=param)


def _too_large(param: str) -> Refusal:
    return Refusal(400, "image_too_large", f"The picture is larger than {MOST_BYTES // MIB} MiB.", param=param)
