"""Workloads out of what an operator has: logs of a gateway or an engine, or request bodies that were kept.

    access_log   Envoy's, with our decisions: lengths, and digests of prompts at some depths
    bodies       of requests, with times: rendered and hashed by the product's own code
    vllm_log     of an engine that logs the token ids of its prompts
    sessions     what all of them have in common: who goes on from whom, and how long the replies were

Lengths, times and names of blocks are taken, and nothing that anybody said.
"""
