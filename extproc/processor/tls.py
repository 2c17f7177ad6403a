"""Certificates for the gRPC port: from files that are rotated from outside, or self-signed.

Owns when files are read again and when a pair is good. Refuses to know gRPC (`server.py`).
"""

from __future__ import annotations

import logging
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from extproc.base.errors import ConfigError

_log = logging.getLogger(__name__)

SELF_SIGNED_DAYS = 3650  # no client verifies it, and the process is younger
_OPENSSL = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
_OPENSSL += ["-subj", "/CN=smetric-extproc", "-addext", "subjectAltName=DNS:localhost", "-keyout", "-", "-out", "-"]
_BEGIN = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Pair:
    """A chain of certificates and its private key, both in PEM."""

    certificate: bytes
    key: bytes


Source = Callable[[], Pair]  # asked at every handshake, from any thread; must not fail


class CertificateFiles:
    """A pair in two files, read again when they change, as a Secret's do when cert-manager rotates it."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises ConfigError where the files hold no pair."""
        self._certificate, self._key = certificate, key
        self._seen = self._version()
        try:
            self._pair = self._read()
        except (OSError, ValueError) as reason:
            raise ConfigError(f"--tls-cert {certificate}, --tls-key {key}: {reason}") from reason

    def __call__(self) -> Pair:
        """The files' pair; while they hold none, as between the writing of one and of the other, the last good one."""
        version = self._version()
        if version != self._seen:
            self._seen = version
            try:
                self._pair = self._read()
                _log.info("certificate %s was read again", self._certificate)
            except (OSError, ValueError) as reason:
                _log.warning("certificate %s cannot be used, the one before is: %s", self._certificate, reason)
        return self._pair

    def _read(self) -> Pair:
        pair = Pair(self._certificate.read_bytes(), self._key.read_bytes())
        # gRPC takes any bytes and then fails each handshake without a word. An encrypted key must not ask the terminal.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate, self._key, password="")
        return pair

    def _version(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in (self._certificate, self._key))


Authorities = Callable[[], bytes]  # certificates in PEM; asked at every handshake, must not fail


class AuthorityFile:
    """Authorities that sign clients' certificates, in one file, read again when it changes."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError where the file holds none."""
        self._path = path
        self._seen = _stamp(path)
        try:
            self._certificates = self._read()
        except (OSError, ValueError) as reason:
            raise ConfigError(f"--tls-client-ca {path}: {reason}") from reason

    def __call__(self) -> bytes:
        """The file's authorities; while it holds none, the last good ones."""
        version = _stamp(self._path)
        if version != self._seen:
            self._seen = version
            try:
                self._certificates = self._read()
                _log.info("authorities %s were read again", self._path)
            except (OSError, ValueError) as reason:
                _log.warning("authorities %s cannot be used, those before are: %s", self._path, reason)
        return self._certificates

    def _read(self) -> bytes:
        certificates = self._path.read_bytes()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_verify_locations(cadata=certificates.decode("ascii"))
        return certificates


def authorities(path: Path | None, certificates: Source | None) -> Authorities | None:
    """Who signs clients' certificates, by the command line; None where nobody need show one. Raises ConfigError."""
    if path is None:
        return None
    if certificates is None:
        raise ConfigError("--tls-client-ca needs TLS: add --tls-cert and --tls-key, or --tls-self-signed")
    return AuthorityFile(path)


def source(certificate: Path | None, key: Path | None, *, self_signed: bool) -> Source | None:
    """Where the command line says that certificates come from; None for plaintext. Raises ConfigError."""
    if self_signed and (certificate or key):
        raise ConfigError("--tls-self-signed and --tls-cert exclude each other")
    if self_signed:
        pair = make_self_signed()
        return lambda: pair
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key belong together")
    return CertificateFiles(certificate, key)


def make_self_signed() -> Pair:
    """A new pair, made by the `openssl` program; the key never touches a disk. Raises ConfigError without it."""
    command = [*_OPENSSL, "-days", str(SELF_SIGNED_DAYS)]
    try:
        made = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as reason:
        advice = "install openssl, or give --tls-cert and --tls-key"
        raise ConfigError(f"--tls-self-signed: the program `openssl` cannot be used ({reason}); {advice}") from reason
    key, begin, certificate = made.partition(_BEGIN)
    return Pair(begin + certificate, key)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()  # of what a Secret's symbolic links lead to
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
