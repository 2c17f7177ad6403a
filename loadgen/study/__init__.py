"""What a workload is like: reuse, intervals, sessions, balance."""
