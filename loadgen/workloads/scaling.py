"""The same workload with shorter or longer texts: what is shared stays shared. Pure."""

from __future__ import annotations

from dataclasses import replace

from loadgen.workloads.trace import Trace


def scaled(trace: Trace, factor: float) -> Trace:
    """All lengths times about `factor`; times stay.

    Named blocks keep their names and become longer or shorter by whole tokens, so the factor really applied is
    `block_size` of the result / `block_size` of the trace. At least one token is left of each prompt, reply and block.
    """
    size = max(1, round(trace.block_size * factor))
    named = any(request.blocks for request in trace.requests)

    def length(tokens: int) -> int:
        return tokens * size // trace.block_size if named else round(tokens * factor)

    requests = [
        replace(
            request,
            input=max(1, length(request.input)),
            output=max(1, length(request.output)),
            system=length(request.system),
            tools=length(request.tools),
            history=length(request.history),
        )
        for request in trace.requests
    ]
    return replace(trace, block_size=size if named else trace.block_size, requests=requests)
