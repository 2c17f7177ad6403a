"""Load for the router: agent workloads, a model of a vLLM instance, and a stack of real parts to run them on.

`extproc` imports nothing of this.
"""
