"""Traces reach a collector: one from the caller's own span over web and broker to the engine's phases, without any text."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.system.stack import Stack, eventually

pytestmark = pytest.mark.stack

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """What an OpenTelemetry collector does, as far as the exporter sees it."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.spans: dict[str, tuple[str, str, str]] = {}
        keep = self

        class Receive(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
                keep.add(body)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()

            def log_message(self, *words: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Receive)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, body: bytes) -> None:
        self.raw.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans[span.name] = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()


def test_one_trace_from_the_caller_to_the_engine(make_stack: Callable[..., Stack], collector: Collector) -> None:
    # The exporter's own pace is five seconds.
    stack = make_stack(MLXPLATFORM_TRACES=collector.url, OTEL_BSP_SCHEDULE_DELAY="200")
    said = "What is the capital of Japan?"
    answer = stack.http.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": said}], "temperature": 0, "max_tokens": 16},
        headers={"traceparent": f"00-{TRACE}-{CALLER}-01"},
    )
    assert answer.status_code == 200
    wanted = {"POST /v1/chat/completions", "gpu chat", "prepare and admit", "wait and prefill", "decode"}
    eventually(lambda: wanted <= collector.spans.keys(), what="the spans")
    spans = collector.spans
    assert {spans[name][0] for name in wanted} == {TRACE}
    web, gpu = spans["POST /v1/chat/completions"], spans["gpu chat"]
    assert (web[2], gpu[2]) == (CALLER, web[1])
    assert {spans[name][2] for name in ("prepare and admit", "wait and prefill", "decode")} == {gpu[1]}
    everything = b"".join(collector.raw)
    assert said.encode() not in everything
    assert answer.json()["choices"][0]["message"]["content"].encode() not in everything
