"""One hostile peer in a process of its own, until it is killed: `python -m bench.chaos.attack NAME '{"option": ...}'`.

So that its work is not done by the process that measures.
"""

from __future__ import annotations

import json
import sys

from bench.chaos.attacks import clients, event_peers, grpc_peers

ATTACKS = {**clients.ATTACKS, **event_peers.ATTACKS, **grpc_peers.ATTACKS}

if __name__ == "__main__":
    ATTACKS[sys.argv[1]](**json.loads(sys.argv[2]))
