"""Request bodies of each API, read as vLLM reads them."""
