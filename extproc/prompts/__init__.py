"""From messages to exactly the bytes that the engine tokenises: the chat template, and where the history ends."""
