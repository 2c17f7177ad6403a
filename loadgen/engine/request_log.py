"""The lines in which vLLM tells what it is asked and what it answers, with the token ids of both.

As vLLM 0.32 writes them with --enable-log-requests and --enable-log-outputs at level DEBUG. Owns their words; it
refuses to know where they go.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from loadgen.engine.completion import Completion


def received(completion: Completion, prompt: str, when: datetime) -> Iterator[str]:
    """What is said when a request comes."""
    request = completion.request
    ids = request.tokens[: request.prompt].tolist()
    details = f"prompt: {prompt!r}, prompt_token_ids: {ids}, prompt_embeds shape: None."
    yield _line("DEBUG", when, f"Request {completion.id} details: {details}")
    params = f"params: SamplingParams(n={len(completion.samples)}, max_tokens={request.reply})"
    yield _line("INFO", when, f"Received request {completion.id}: {params}, lora_request: {request.lora}.")


def generated(completion: Completion, when: datetime) -> str:
    """What is said when the reply is there."""
    ids = completion.reply.tokens.tolist()
    how = " (streaming complete)" if completion.stream else ""
    said = f"output: {completion.sample.text()!r}, output_token_ids: {ids}, finish_reason: {completion.reply.finish}"
    return _line("INFO", when, f"Generated response {completion.id}{how}: {said}")


def _line(level: str, when: datetime, text: str) -> str:
    return f"{level} {when:%m-%d %H:%M:%S} [request_logger.py:40] {text}\n"
