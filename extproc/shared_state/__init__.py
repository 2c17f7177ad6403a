"""What several routers share through Redis beside the index: connections, scripts, leases, loads."""
