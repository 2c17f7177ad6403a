"""Ways to a real Redis: passwords, TLS, a socket on this machine."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from extproc.base.errors import IndexLost, IndexUnavailable
from extproc.index import Change
from extproc.processor import tls
from tests.support.redis_server import WHEEL, RedisServer, redis_server
from tests.support.shared_index import ADD, CHAIN, opened, until_it_works


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All that comes, to somebody else."""
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_password() -> None:
    """The password is part of the URL; without it every call is refused."""
    with redis_server() as server:
        server.send("CONFIG", "SET", "requirepass", "geheim")
        async with opened(server.url.replace("//", "//:geheim@")) as index:
            await index.apply(ADD)
            assert await until_it_works(lambda: index.match("pool", CHAIN)) == {"a": 200}
        for url in (server.url, server.url.replace("//", "//:wrong@")):
            async with opened(url) as index:
                with pytest.raises(IndexUnavailable):
                    await index.match("pool", CHAIN)
                with pytest.raises(IndexUnavailable):
                    await index.apply(ADD)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
async def test_tls(own_redis: RedisServer, tmp_path: Path) -> None:
    """`rediss://` speaks TLS and verifies the certificate."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *subject]
    subprocess.run(make, check=True, capture_output=True)  # noqa: ASYNC221 - nothing else runs
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", own_redis.port)
        await asyncio.gather(pump(reader, redis_writer), pump(redis_reader, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
    url = f"rediss://localhost:{server.sockets[0].getsockname()[1]}/0"
    async with opened(f"{url}?ssl_ca_certs={certificate}") as index:
        await until_it_works(lambda: index.apply(ADD))
        assert await until_it_works(lambda: index.match("pool", CHAIN)) == {"a": 200}
    async with opened(url) as index:
        with pytest.raises(IndexUnavailable):
            await index.apply(ADD)
    server.close()
    await asyncio.sleep(0.05)  # lets the forwarders see their connections end


async def test_a_unix_socket(tmp_path: Path) -> None:
    """`unix://` reaches a Redis on this machine without a port."""
    path = tmp_path / "redis.sock"
    server = RedisServer(WHEEL, "--unixsocket", str(path))
    server.start()
    try:
        async with opened(f"unix://{path}") as index:
            await until_it_works(lambda: index.apply(ADD))
            assert await until_it_works(lambda: index.match("pool", CHAIN)) == {"a": 200}
    finally:
        server.stop()


async def test_a_user_without_the_right_to_a_name(own_redis: RedisServer) -> None:
    """Connections have a name for people who look at Redis. Hosted ones, and proxies, do not let everybody give one:
    all else works."""
    own_redis.send("ACL", "SETUSER", "u", "on", ">x", "~*", "&*", "+@all", "-client")
    async with opened(own_redis.url.replace("//", "//u:x@")) as index:
        await until_it_works(lambda: index.apply(ADD))
        assert await until_it_works(lambda: index.match("pool", CHAIN)) == {"a": 200}
    async with opened(own_redis.url) as index:
        await until_it_works(lambda: index.apply(ADD))
        assert b"name=smetric-extproc" in await index._client.execute_command("CLIENT", "LIST")


async def test_a_failover_behind_one_address(own_redis: RedisServer) -> None:
    """A name or a balancer leads to the new master, and the old one lives on as its replica and keeps our connections.
    They are given up, and the writer hears that the new one has nothing of its own."""
    ports = [own_redis.port]

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", ports[0])
        await asyncio.gather(pump(reader, redis_writer), pump(redis_reader, writer))

    balancer = await asyncio.start_server(forward, "127.0.0.1", 0)
    with redis_server() as master:
        async with opened(f"redis://127.0.0.1:{balancer.sockets[0].getsockname()[1]}/0") as index:
            await until_it_works(lambda: index.apply(ADD))
            ports[0] = master.port
            own_redis.send("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(IndexLost):
                await until_it_works(lambda: index.apply([Change("pool", "a", add=[1])]))
            await until_it_works(lambda: index.apply(ADD))
            assert await until_it_works(lambda: index.match("pool", CHAIN)) == {"a": 200}
    balancer.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
async def test_why_a_handshake_fails(own_redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A certificate that nobody trusts is told as such, and so is a missing file; a file that is replaced counts."""
    pair = tls.make_self_signed()
    certificate, key, trusted = tmp_path / "certificate", tmp_path / "key", tmp_path / "trusted"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    trusted.write_bytes(tls.make_self_signed().certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", own_redis.port)
        await asyncio.gather(pump(reader, redis_writer), pump(redis_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
    url = f"rediss://localhost:{server.sockets[0].getsockname()[1]}/0?ssl_ca_certs="
    for file, told in ((trusted, "CERTIFICATE_VERIFY_FAILED"), (tmp_path / "missing", "No such file")):
        caplog.clear()
        async with opened(f"{url}{file}") as index:
            async with asyncio.timeout(20):
                while not caplog.messages:
                    with suppress(IndexUnavailable):
                        await index.match("pool", CHAIN)
                    await asyncio.sleep(0.02)
        assert told in caplog.messages[0]
    async with opened(f"{url}{trusted}") as index:
        trusted.write_bytes(pair.certificate)
        async with asyncio.timeout(20):
            while not index._reads._there:
                with suppress(IndexUnavailable):
                    await index.match("pool", CHAIN)
                await asyncio.sleep(0.02)
    server.close()
