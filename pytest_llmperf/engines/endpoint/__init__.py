"""A service that already runs: how a test describes it, and how its requests, replicas and counters are read."""
