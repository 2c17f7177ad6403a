"""`make run`: agent sessions through a real Envoy, shown as they run."""
