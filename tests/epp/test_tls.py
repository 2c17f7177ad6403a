"""The certificate of the gRPC port: HTTP/2 by ALPN, renewed without a restart, and never lost to a broken file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

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
