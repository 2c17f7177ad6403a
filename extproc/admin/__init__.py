"""What operators ask of a running router over HTTP: `/metrics`, `/debug/state`, `/debug/explain`."""
