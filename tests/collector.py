"""A collector of OpenTelemetry's spans over HTTP (OTLP), as a real one takes them: protobuf in, nothing lost."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Told(NamedTuple):
    """A span and the service that told of it."""

    service: str
    span: Span

    @property
    def trace(self) -> str:
        """The id of its trace, in hex."""
        return self.span.trace_id.hex()

    @property
    def attributes(self) -> dict[str, str | int]:
        """Its attributes."""
        return {one.key: one.value.string_value or one.value.int_value for one in self.span.attributes}


class Collector(ThreadingHTTPServer):
    """Listens on a free port of the loopback."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []

    @property
    def url(self) -> str:
        """What `OTEL_EXPORTER_OTLP_ENDPOINT` is to be."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def told(self) -> list[Told]:
        """All spans so far."""
        found: list[Told] = []
        for body in tuple(self.bodies):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                names = {one.key: one.value.string_value for one in resource.resource.attributes}
                found += (Told(names["service.name"], span) for scope in resource.scope_spans for span in scope.spans)
        return found


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        assert self.headers["Content-Type"] == "application/x-protobuf"
        self.server.bodies.append(body)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Nothing."""


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector until the block ends."""
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()
