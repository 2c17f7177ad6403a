"""The sub-commands of `python -m loadgen`, one module each.

A module has `DESCRIPTION` (what `--help` teaches), `add_arguments(parser)` and `run(args)`, which returns the exit
code. The module's name is the command's; its line of help stands in `loadgen.cli`.
"""

from __future__ import annotations

INTERRUPTED = 130  # exit code: what a shell reports of a process that SIGINT ended
