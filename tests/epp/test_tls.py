"""The certificate of the gRPC port: HTTP/2 by ALPN, renewed without a restart, and never lost to a broken file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.base.errors import ConfigError
from extproc.processor import tls
from extproc.processor.grpc_health import GrpcHealth
from extproc.processor.server import OPTIONS, credentials
from tests.epp.handshake import Handshake, der, shake


class Files:
    """A mounted Secret: a symbolic link to a directory of two files, replaced at once as the kubelet does."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self.certificate, self.key = directory / "current" / "tls.crt", directory / "current" / "tls.key"

    def write(self, certificate: bytes, key: bytes) -> None:
        self._count += 1
        version = self._directory / f"version-{self._count}"
        version.mkdir()
        (version / "tls.crt").write_bytes(certificate)
        (version / "tls.key").write_bytes(key)
        fresh = self._directory / "fresh"
        fresh.symlink_to(version)
        fresh.replace(self._directory / "current")


@pytest.fixture
def files(tmp_path: Path, certificate: tls.Pair) -> Files:
    made = Files(tmp_path)
    made.write(certificate.certificate, certificate.key)
    return made


@pytest.fixture
async def port(files: Files) -> AsyncIterator[int]:
    """A server whose certificate is in files."""
    server = grpc.aio.server(options=OPTIONS)
    GrpcHealth().add_to(server)
    bound = server.add_secure_port("127.0.0.1:0", credentials(tls.CertificateFiles(files.certificate, files.key)))
    await server.start()
    yield bound
    await server.stop(0)


async def test_http2_is_agreed_on(port: int, certificate: tls.Pair) -> None:
    """ALPN chooses h2, without which no gateway speaks gRPC over TLS."""
    assert await asyncio.to_thread(shake, port) == Handshake("h2", der(certificate))


async def test_a_renewed_certificate_is_used_at_once(port: int, files: Files) -> None:
    """cert-manager renews the Secret; the next handshake has the new certificate, without a restart."""
    renewed = tls.make_self_signed()
    files.write(renewed.certificate, renewed.key)
    assert (await asyncio.to_thread(shake, port)).certificate == der(renewed)


async def test_broken_files_leave_the_last_good_certificate(
    port: int, files: Files, certificate: tls.Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate without its key, garbage, or no file at all: said once each, and clients notice nothing."""
    other = tls.make_self_signed()
    with caplog.at_level(logging.INFO, "extproc.processor.tls"):
        for broken in ((other.certificate, certificate.key), (b"garbage", b"garbage"), (b"", b"")):
            files.write(*broken)
            for _ in range(2):
                assert (await asyncio.to_thread(shake, port)).certificate == der(certificate)
        files.certificate.unlink()
        assert (await asyncio.to_thread(shake, port)).certificate == der(certificate)
        files.write(other.certificate, other.key)
        assert (await asyncio.to_thread(shake, port)).certificate == der(other)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 4 + ["INFO"]


@pytest.fixture
async def guarded(certificate: tls.Pair, tmp_path: Path) -> AsyncIterator[tuple[int, tls.Pair, Path]]:
    """A server that asks for a certificate: its port, a client's pair, and the file of authorities."""
    client, authorities = tls.make_self_signed(), tmp_path / "clients.crt"
    authorities.write_bytes(client.certificate)
    server = grpc.aio.server(options=OPTIONS)
    GrpcHealth().add_to(server)
    secured = credentials(lambda: certificate, tls.AuthorityFile(authorities))
    bound = server.add_secure_port("127.0.0.1:0", secured)
    await server.start()
    yield bound, client, authorities
    await server.stop(0)


async def knock(port: int, server: tls.Pair, client: tls.Pair | None) -> bool:
    """Whether a client with this pair is served."""
    shown = (client.key, client.certificate) if client else (None, None)
    trusted = grpc.ssl_channel_credentials(server.certificate, *shown)
    options = (("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted, options=options) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="liveness"), timeout=5
            )
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.NOT_FOUND  # served: nobody has said that the process is alive
    return True


async def test_a_client_must_show_its_certificate(guarded: tuple[int, tls.Pair, Path], certificate: tls.Pair) -> None:
    """Neither none nor one that another authority signed will do."""
    port, client, _ = guarded
    assert await knock(port, certificate, client)
    assert not await knock(port, certificate, None)
    assert not await knock(port, certificate, tls.make_self_signed())


async def test_authorities_may_change(guarded: tuple[int, tls.Pair, Path], certificate: tls.Pair) -> None:
    """A file that is replaced counts from the next handshake on; a broken one changes nothing."""
    port, client, authorities = guarded
    authorities.write_bytes(b"garbage")
    assert await knock(port, certificate, client)
    other = tls.make_self_signed()
    authorities.write_bytes(other.certificate)
    assert await knock(port, certificate, other)
    assert not await knock(port, certificate, client)


def test_authorities_must_make_sense(files: Files, tmp_path: Path) -> None:
    """Without TLS nobody could be asked, and a file without certificates would let in nobody."""
    served = tls.source(files.certificate, files.key, self_signed=False)
    assert tls.authorities(None, served) is None
    with pytest.raises(ConfigError, match="needs TLS"):
        tls.authorities(files.certificate, None)
    (tmp_path / "empty").write_bytes(b"")
    for wrong in (tmp_path / "missing", tmp_path / "empty", files.key):
        with pytest.raises(ConfigError, match="--tls-client-ca"):
            tls.authorities(wrong, served)


def test_a_wrong_pair_is_refused_at_the_start(files: Files, certificate: tls.Pair) -> None:
    """Better no start than a server that fails each handshake."""
    files.write(tls.make_self_signed().certificate, certificate.key)
    with pytest.raises(ConfigError, match=r"--tls-cert .*tls\.crt"):
        tls.CertificateFiles(files.certificate, files.key)


def test_the_command_line_must_make_sense(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plaintext is the default; half a pair, two sources, or no openssl are explained."""
    assert tls.source(None, None, self_signed=False) is None
    with pytest.raises(ConfigError, match="belong together"):
        tls.source(files.certificate, None, self_signed=False)
    with pytest.raises(ConfigError, match="exclude each other"):
        tls.source(files.certificate, files.key, self_signed=True)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="install openssl"):
        tls.source(None, None, self_signed=True)
