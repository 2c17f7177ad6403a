"""What a model's tokenizer files say: token -> bytes for events, and the normalisation of text for requests."""
