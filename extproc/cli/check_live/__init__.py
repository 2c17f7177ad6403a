"""`check --live`: try every address in an Envoy YAML, and say what answers.

    findings      what was found, and how it is printed
    network       connections within a time, and why they fail
    names         names -> addresses -> instances, as `serve` finds them
    engines       an engine's HTTP: health, served models, its prompts beside ours
    zmtp          the wire of ZMQ, as far as one must speak it to know who is there
    events        KV events and their replay
    shared_index  Redis: connection, rights, whether it takes writes
    servers       the ports of the ext_proc server itself
    run           all of it at once

Everything is tried from where the command runs, which should be where the router runs. It changes nothing anywhere, but
for a pool of its own in Redis, which expires.
"""
