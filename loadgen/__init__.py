"""Load for the router: agent workloads, a model of a vLLM instance, and a stack of real parts to run them on.

Nothing here is imported by `extproc`; the other direction is allowed only to the simulator (a later issue).
"""
