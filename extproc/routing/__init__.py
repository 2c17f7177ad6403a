"""From a request to an instance: pure and synchronous, but for the one look-up in the index."""
