"""`rediss://`: the whole system behind TLS, and a certificate that nobody vouches for."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.embedded import DURABLE, EmbeddedServer
from tests.acceptance.command_line import Up, feedback

pytestmark = [pytest.mark.server, pytest.mark.process]

# Self-signed, for localhost, for these tests alone.
CERTIFICATE = Path(__file__).with_name("tls") / "certificate.pem"
KEY = CERTIFICATE.with_name("key.pem")


class TlsFront:
    """Takes TLS connections and passes them on to a server that speaks none."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name="tls")
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE, KEY)
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0, ssl=context)
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        async with server:
            await self._stop.wait()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        pumps = {
            asyncio.create_task(_pump(reader, upstream_writer)),
            asyncio.create_task(_pump(upstream_reader, writer)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            upstream_writer.close()
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return


@pytest.fixture
def tls_port(tmp_path: Path) -> Iterator[int]:
    """The port of a real server's TLS front."""
    server = EmbeddedServer(tmp_path / "valkey", DURABLE)
    server.start()
    front = TlsFront(int(server.url.rpartition(":")[2].removesuffix("/0")))
    try:
        yield front.port
    finally:
        front.stop()
        server.stop()


def test_everything_runs_over_tls(tls_port: int, tmp_path: Path) -> None:
    """Worker, projector and host trust the certificate that the URL names; others refuse to talk."""
    url = f"rediss://localhost:{tls_port}/0"
    with Up(tmp_path / "data", env={"FEEDBACK_REDIS_URL": f"{url}?ssl_ca_certs={CERTIFICATE}"}) as up:
        assert up.feedback("put", "demo-flaky-test", "answer-1", "positive").code == 0
        assert up.feedback("list", "demo-flaky-test").out.startswith("positive  answer-1")
        assert up.feedback("doctor").code == 0
        untrusted = feedback("list", "demo-flaky-test", "--redis-url", url, "--timeout", "1")
        assert untrusted.code == 3
        assert "CERTIFICATE_VERIFY_FAILED" in untrusted.err
