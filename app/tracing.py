"""OpenTelemetry's SDK for this system's own processes, set up by the standard `OTEL_*` variables, and only by them.

Without an exporter named, nothing of it is set up, or loaded by us.
"""

# ruff: noqa: PLC0415 - what is imported inside is an extra, and loaded only where an exporter is configured

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from feedback.errors import SettingsInvalid

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXPORTER = "OTEL_TRACES_EXPORTER"
_PROTOCOL = "http/protobuf"
_PARTING_S = 2.0
"""How long a process waits at its end for a collector to take the last spans."""


@contextmanager
def traced(service: str, environ: Mapping[str, str]) -> Iterator[None]:
    """Export spans of this process as `service` while the block runs, where an exporter is configured.

    A collector that does not answer holds nothing up: what does not fit the bounded queue of spans is dropped.

    Raises:
        SettingsInvalid: an exporter or protocol that is not had here, or the extra with OpenTelemetry is missing.
    """
    if not _is_wanted(environ):
        yield
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        reason = f"OTEL_*: traces need {error.name}: pip install 'session-feedback[tracing]'"
        raise SettingsInvalid(reason) from None
    # Where no log is set up, as in a command of one call, Python would print on stderr what the exporter logs.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": service})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        # Its own end may wait for half a minute, and is not to keep the process from its end.
        parting = threading.Thread(target=provider.shutdown, name="last-spans", daemon=True)
        parting.start()
        parting.join(_PARTING_S)


def _is_wanted(environ: Mapping[str, str]) -> bool:
    exporter = environ.get(_EXPORTER, "")
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter == "none":
        return False
    if not (exporter or any(environ.get(name) for name in _ENDPOINTS)):
        return False
    if exporter not in {"", "otlp"}:
        raise SettingsInvalid(f"{_EXPORTER}: {exporter!r} is not had here; otlp is, or none")
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        raise SettingsInvalid(f"{_PROTOCOLS[1]}: {protocol!r} is not had here; {_PROTOCOL} is")
    return True
