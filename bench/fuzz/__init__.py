"""Fuzzing: what comes from others, changed by chance, into what reads it: `python -m bench.fuzz --help`.

`targets` is what reads, and what it promises; `mutate` changes inputs of the corpus in tests/fuzz/corpus;
`trial` tries, and `__main__` spreads the work over processes.
"""
