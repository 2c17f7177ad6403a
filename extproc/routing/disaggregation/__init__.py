"""Prefill-decode disaggregation, the pure part: which instances do which half, and the two bodies of one request.

A pool is disaggregated where its instances' roles say so. A request that can be halved is computed up to its first
token by a prefill instance, whose KV the decode instance then pulls over vLLM's connector. Knows no HTTP
(`processor/prefiller.py`), no Envoy, and not how an instance is chosen (`routing/router.py`).
"""
