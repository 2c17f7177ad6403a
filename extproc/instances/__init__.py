"""Who the instances are and whether they are healthy: DNS, EDS files, HTTP health checks."""
