"""The one error that a command line shows without a traceback. Any room may raise it; it imports none."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot go on; the message says why and what to do about it."""
