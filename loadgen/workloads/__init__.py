"""Workloads: the trace model, generators with their profiles, arrivals, scaling, and readers of public formats."""
