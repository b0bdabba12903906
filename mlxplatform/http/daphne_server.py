"""Daphne with back-pressure, bounded memory and an orderly end.

Three things differ from Daphne as it comes:

* ``send`` returns when the client's socket has taken the data, not before: an unread stream grew the stock
  server from 64 to 566 MB in four seconds. Large bodies are written in pieces for the same reason.
* A request body stays in the spool file it arrived in and is read as the application asks for it (stock: all of
  it is copied to a queue in memory). Past the path's limit nothing more is stored; the application sees one byte
  too many and refuses.
* At shutdown the listening socket closes first, running requests may finish (each with its connection), then the rest is
  cancelled.

It knows ASGI and Twisted. It knows no route: limits come as a function, errors are rendered by
:mod:`mlxplatform.http.errors`. WebSockets are Daphne's own.

Limit: a client that sends more than 16 kB of further pipelined requests while one is answered stops being
read, so its hang-up is noticed only by the next write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from functools import partial
from io import BytesIO
from typing import Any

import daphne.server  # installs the asyncio reactor, so it comes before anything else of Twisted
import structlog
from daphne.http_protocol import HTTPFactory, WebRequest
from twisted.internet import defer, reactor
from twisted.internet.interfaces import IPushProducer
from twisted.web import http
from zope.interface import implementer

from mlxplatform.http import beside, leaving
from mlxplatform.http.errors import INTERNAL, dialect_of, error_body, to_json
from mlxplatform.inference.contract import Refusal

log = structlog.get_logger(__name__)

#: Largest piece handed to the socket at once, bytes; also the piece a body is read in.
PIECE = 64 * 1024
#: Bytes of an over-long body that are read and thrown away, so that the client can still read the refusal.
DISCARD = 2**30
#: Pieces of one response between two moments in which others may run although the socket took everything.
PIECES_IN_A_ROW = 16
#: Seconds between the disconnect of a client and the cancelling of an application that did not notice.
CLOSE_TIMEOUT = 2


@implementer(IPushProducer)
class _Flow:
    """The transport's word on whether the client takes more."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def pauseProducing(self) -> None:
        self._open.clear()

    def resumeProducing(self) -> None:
        self._open.set()

    def stopProducing(self) -> None:
        self._open.set()

    async def wait(self) -> None:
        await self._open.wait()


class Request(WebRequest):
    """One HTTP request of the stock protocol, with flow control in both directions."""

    content: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Twisted would parse forms and multipart bodies into memory; Django does that itself.
        super().__init__(*args, parsePOSTFormSubmission=False, **kwargs)
        self.flow = _Flow()
        self._stored = 0
        self._discarded = 0
        self._limit: int | None = None

    # Body in -------------------------------------------------------------------------------------------------

    def handleContentChunk(self, data: bytes) -> None:
        if self._limit is None:
            path = self.channel._path.split(b"?", 1)[0].decode("ascii", "replace")
            self._limit = self.server.body_limit(path) + 1
        room = self._limit - self._stored
        if len(data) > room:
            self._discarded += len(data) - room
            data = data[:room]
            if self._discarded > DISCARD:
                self.channel.transport.abortConnection()
                return
        if data:
            self._stored += len(data)
            self.content.write(data)

    def take_body(self) -> Any:
        """The spooled body; the stock code that follows then finds nothing to copy."""
        body, self.content = self.content, BytesIO()
        return body

    # Response out --------------------------------------------------------------------------------------------

    def handle_reply(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and not self._response_started and self.channel is not None:
            self.registerProducer(self.flow, True)
            if self.server.closing:
                self.setHeader(b"connection", b"close")
        if self.method == b"HEAD" and message["type"] == "http.response.body":
            message = {**message, "body": b""}  # the stock protocol leaks every piece but the first
        if message["type"] == "http.response.body" and message.get("more_body") and self._response_started:
            self.write(message.get("body", b""))  # all that the stock protocol does, without a line of log for each token
        else:
            super().handle_reply(message)

    def finish(self) -> None:
        if self.producer is not None:
            self.unregisterProducer()
        if self.server.closing and self.channel is not None:
            self.channel.persistent = 0  # the next request of this client belongs to the server that follows
        super().finish()

    def connectionLost(self, reason: Any) -> None:
        self.flow.stopProducing()
        super().connectionLost(reason)

    def handle_exception(self, exception: Exception) -> None:
        if self._response_started:
            # A cut connection is the only honest end: a closed chunked body would look like a finished answer.
            transport = self.channel.transport
            transport.loseConnection()
            reactor.callLater(CLOSE_TIMEOUT, transport.abortConnection)
        else:
            self._refuse(INTERNAL)

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        """The stock server's own refusals (bad header, bad path), in the dialect of the path."""
        if status >= 500:
            self._refuse(INTERNAL)
        else:
            self._refuse(Refusal(status, "bad_request", f"The request could not be understood: {body.lower()}."))

    def _refuse(self, refusal: Refusal) -> None:
        content = to_json(error_body(dialect_of((self.path or b"/").decode("ascii", "replace")), refusal))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        self.handle_reply({"type": "http.response.start", "status": refusal.status, "headers": headers})
        self.handle_reply({"type": "http.response.body", "body": content})

    def write(self, data: bytes) -> None:
        # A client that hung up between two pieces: nothing to write to, and no reason to complain.
        if not self.finished and self.channel is not None:
            super().write(data)


def _end_with_bad_request(channel: http.HTTPChannel, *_line: bytes) -> None:
    """What cannot even be parsed as HTTP gets the one answer Twisted gives it, with a body."""
    path = getattr(channel, "_path", b"/").decode("ascii", "replace")
    refusal = Refusal(400, "bad_request", "The request could not be understood as HTTP.")
    body = to_json(error_body(dialect_of(path), refusal))
    head = (
        f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    channel.transport.write(head.encode() + body)
    channel.loseConnection()


def _write_through(transport: Any) -> None:
    """Make a connection write what it is given at once; only what the socket does not take waits for the selector.

    The stock connection registers with the selector for each write and leaves it again when that is through, which costs
    more than rendering a streamed token. Errors, and the end of a connection, stay the reactor's to find.
    """
    wait = transport.startWriting

    def start_writing() -> None:
        fresh = transport._tempDataBuffer and not transport.dataBuffer
        if not fresh or transport.doWrite() is not None or transport.dataBuffer:
            wait()

    transport.startWriting = start_writing


class _Factory(HTTPFactory):
    def buildProtocol(self, addr: Any) -> Any:
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = Request
        made = protocol.makeConnection

        def make_connection(transport: Any) -> None:
            _write_through(transport)
            made(transport)

        protocol.makeConnection = make_connection
        channel = protocol._channel
        channel._respondToBadRequestAndDisconnect = partial(_end_with_bad_request, channel)
        channel.lineLengthExceeded = partial(_end_with_bad_request, channel)
        return protocol

    def log(self, request: http.Request) -> None:
        """No access log: the application logs what matters."""


class _Receive:
    """An application's ``receive``: the body piece by piece from its spool file, then the disconnect."""

    def __init__(self, body: Any) -> None:
        self._body = body
        self._gone = asyncio.Event()
        self._done = False

    def put_nowait(self, message: MutableMapping[str, Any]) -> None:
        """Called by the stock protocol; its (empty) copy of the body is ignored."""
        if message["type"] == "http.disconnect":
            self._gone.set()

    async def get(self) -> MutableMapping[str, Any]:
        if not self._done:
            if self._gone.is_set():
                self._finish()
                return {"type": "http.disconnect"}
            piece = self._body.read(PIECE)
            self._done = len(piece) < PIECE
            if self._done:
                self._body.close()
            return {"type": "http.request", "body": piece, "more_body": not self._done}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def _finish(self) -> None:
        self._done = True
        self._body.close()


class Server(daphne.server.Server):
    """The stock server, with the differences named above.

    ``body_limit`` gives the largest body of a path, bytes. ``drain_seconds`` is how long running requests may
    go on after the server was asked to end. ``on_accepting`` is called once connections are accepted.
    """

    def __init__(
        self,
        *args: Any,
        body_limit: Callable[[str], int],
        drain_seconds: float,
        on_accepting: Callable[[], None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            *args,
            action_logger=None,
            http_timeout=None,  # a total time, not an idle time: it would cut every long stream with a proper end
            application_close_timeout=CLOSE_TIMEOUT,
            server_name="",
            **kwargs,
        )
        self.body_limit = body_limit
        self.drain_seconds = drain_seconds
        self._on_accepting = on_accepting
        self.closing = False
        self._ports: list[Any] = []
        self._beside: list[asyncio.Task[None]] = []

    def listen_success(self, port: Any) -> None:
        self._ports.append(port)
        if len(self._ports) == 1:
            reactor.callLater(0, self._start_beside)  # the loop does not run yet
        super().listen_success(port)
        if self._on_accepting is not None:
            self._on_accepting()

    def hand_over(self, seconds: float) -> None:
        """End, with this long for running requests, because another server accepts from the same socket. From any thread or
        signal handler."""
        self.drain_seconds = seconds
        reactor.callFromThread(reactor.stop)

    def _start_beside(self) -> None:
        self._beside = beside.start()

    def run(self) -> None:
        stock, daphne.server.HTTPFactory = daphne.server.HTTPFactory, _Factory
        try:
            super().run()
        finally:
            daphne.server.HTTPFactory = stock

    def create_application(self, protocol: Any, scope: MutableMapping[str, Any]) -> Any:
        if scope["type"] != "http":
            return super().create_application(protocol, scope)
        queue = _Receive(protocol.take_body())
        scope.setdefault("asgi", {"version": "3.0"})
        application = self.application(scope=scope, receive=queue.get, send=_Send(self, protocol))
        if protocol not in self.connections:
            application.close()
            return None
        self.connections[protocol]["application_instance"] = asyncio.ensure_future(application)
        return queue

    def kill_all_applications(self) -> defer.Deferred[Any]:
        """Before the reactor ends: listen no more, let running requests finish, cancel the rest."""
        self.closing = True
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._drain()))

    async def _drain(self) -> None:
        for port in self._ports:
            port.stopListening()
        if running := self._running():
            log.info("draining", requests=len(running), seconds=self.drain_seconds)
        await leaving.begin()
        until = asyncio.get_running_loop().time() + self.drain_seconds
        # A connection that was kept open may bring another request meanwhile.
        while (running := self._running()) and (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(running, timeout=left)
        for task in self._running():
            task.cancel()
        if running := self._running():
            await asyncio.wait(running, timeout=CLOSE_TIMEOUT)

    def _running(self) -> list[asyncio.Future[Any]]:
        tasks = (details.get("application_instance") for details in self.connections.values())
        return [task for task in tasks if task is not None and not task.done()]


class _Send:
    """An application's ``send`` for one HTTP request: back when the socket has taken the data."""

    def __init__(self, server: Server, protocol: Request) -> None:
        self._server = server
        self._protocol = protocol
        self._in_a_row = 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        body = message.get("body", b"")
        if message["type"] == "http.response.body" and len(body) > PIECE:
            more_body = message.get("more_body", False)
            for start in range(0, len(body), PIECE):
                end = start + PIECE
                piece = bytes(body[start:end])
                await self._pass({"type": message["type"], "body": piece, "more_body": more_body or end < len(body)})
        else:
            await self._pass(message)

    async def _pass(self, message: MutableMapping[str, Any]) -> None:
        await self._server.handle_reply(self._protocol, message)
        # Now and then even when the socket takes everything (or is gone): a source that never waits must not starve others.
        self._in_a_row += 1
        if self._in_a_row >= PIECES_IN_A_ROW or len(message.get("body", b"")) >= PIECE:
            self._in_a_row = 0
            await asyncio.sleep(0)
        await self._protocol.flow.wait()


def stop() -> None:
    """End the running server from any thread."""
    reactor.callFromThread(reactor.stop)
