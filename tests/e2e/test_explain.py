"""Explaining a decision through a running server: what it says is what happens next, and asking changes nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp

from loadgen.stack.processes import free_port
from loadgen.stack.stack import HOST, Stack
from tests.support.agents import WORD, chat, decision, loads, post, until


async def explain(stack: Stack, url: str, file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "extproc", "explain", "--envoy-yaml", str(stack.envoy_yaml), "--state", url]
    return await asyncio.to_thread(
        subprocess.run, [*command, str(file), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


async def test_what_it_says_is_what_happens(tmp_path: Path) -> None:
    """The explained choice is the next request's; no request is counted by asking."""
    with Stack(engines=3) as stack:
        turns = [("user", f"secret {WORD * 40}")]
        for _ in range(2):
            answer = await post(stack, chat(*turns))
            turns += [("assistant", answer.json["choices"][0]["message"]["content"] or "x"), ("user", "go on")]
        file = tmp_path / "body.json"
        file.write_bytes(chat(*turns))
        await until(lambda: not any(loads(stack)))
        told = await explain(stack, stack.metrics_url, file)
        assert told.returncode == 0, told.stderr
        assert "turn       2\n" in told.stdout
        assert told.stdout.count("in flight") == 3
        assert "guard      evicted: passes, hit " in told.stdout
        assert WORD not in told.stdout
        assert not any(loads(stack))
        sent = await post(stack, file.read_bytes())
        assert f"choice     {sent.engine}, stick" in told.stdout
        assert (await decision(stack, sent))["reason"] == "stick"
        await until(lambda: not any(loads(stack)))
        wrong = await explain(stack, stack.metrics_url, file, "--cluster", "elsewhere")
        assert wrong.returncode == 1
        assert "no pool 'elsewhere'" in wrong.stderr


async def test_it_is_not_for_the_public(tmp_path: Path) -> None:
    """On an address that others can reach it is served only where an operator asked for it."""
    file = tmp_path / "body.json"
    file.write_bytes(chat(("user", "hello")))
    statuses: list[Any] = []
    with Stack(engines=1) as stack:
        for options in ([], ["--debug-explain"]):
            ports = {flag: free_port() for flag in ("--listen", "--health", "--metrics")}
            command = [sys.executable, "-m", "extproc", "serve", "--envoy-yaml", str(stack.envoy_yaml), *options]
            for flag, port in ports.items():
                command += [flag, f"{'0.0.0.0' if flag == '--metrics' else HOST}:{port}"]
            url = f"http://{HOST}:{ports['--metrics']}"
            process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
            try:
                async with aiohttp.ClientSession() as http, asyncio.timeout(60):
                    while True:
                        try:
                            async with http.post(f"{url}/debug/explain", data=file.read_bytes()) as answer:
                                statuses.append(answer.status)
                                break
                        except aiohttp.ClientConnectionError:
                            await asyncio.sleep(0.1)
                told = await explain(stack, url, file)
                assert ("--debug-explain" in told.stderr) == (not options)
            finally:
                process.terminate()
                await process.wait()
    assert statuses == [404, 200]
