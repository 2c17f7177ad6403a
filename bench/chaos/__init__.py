"""Chaos: every fault that the project knows, one after the other, under load: `python -m bench.chaos --help`.

`world` is what is broken, `load` the requests that must not be lost, `faults` a table of what is done, `attacks` what
hostile peers do (in processes of their own), `watch` what is measured, `run` the schedule, `__main__` the verdict.
"""
