"""The process: it builds every part, wires them together, serves, and runs its children."""
