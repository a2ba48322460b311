"""One connection: uvicorn's HTTP, with bounds on what a caller may send, and on how long it may take to."""

import asyncio
import logging

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEADER_BYTES = 64 * 1024
"""Of a request's line and headers together."""
HEADERS_WITHIN_S = 10.0
"""Seconds that a connection may take for a request's headers, from its first byte on, and for the rest of a body that
was answered unread."""
STALLED_S = 30.0
LEAST_TAKEN = 64 * 1024
"""Bytes that a reader must take in `STALLED_S` seconds of what waits for it, unless that is less. A connection whose
reader does not is cut off: to close it would wait for ever for the rest to be taken."""

_log = logging.getLogger(__name__)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol takes headers of any size and waits for them for ever; this one does neither.

    It also stops its clock at any byte, keeps trailers, which this one drops, and waits for ever for a reader.
    """

    _awaits_headers = True
    _header_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._start_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        awaited_headers = self._awaits_headers
        super().data_received(data)
        if awaited_headers and self._awaits_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MOST_HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response("Headers too large.")
        elif self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._start_waiting()

    def on_message_begin(self) -> None:
        self._start_waiting()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._awaits_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self.cycle.response_complete:
            self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body and self._timer is None:
            self._timer = self.loop.call_later(HEADERS_WITHIN_S, self._close)
        self._watch_closing()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_watching()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_closing()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        self._watch_closing()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch_closing()

    def _close(self) -> None:
        self.transport.close()
        self._watch_closing()

    def _watch_closing(self) -> None:
        if self.transport.is_closing():
            self._watch()

    def _watch(self) -> None:
        """As long as this goes on, nothing more is written: what waits can only become less."""
        if self._taking is None:
            waiting = self.transport.get_write_buffer_size()
            self._taking = self.loop.call_later(STALLED_S, self._look_whether_taken, waiting)

    def _stop_watching(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _look_whether_taken(self, before: int) -> None:
        self._taking = None
        waiting = self.transport.get_write_buffer_size()
        if not waiting:
            return
        if before - waiting >= LEAST_TAKEN:
            self._watch()
        else:
            _log.info("a reader stands still; its connection is cut off bytes=%d", waiting)
            self.transport.abort()

    def _start_waiting(self) -> None:
        self._stop_waiting()
        self._awaits_headers, self._header_bytes = True, 0
        self._timer = self.loop.call_later(HEADERS_WITHIN_S, self._close)

    def _stop_waiting(self) -> None:
        self._awaits_headers = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
