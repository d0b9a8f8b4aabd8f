"""The core on a clock that only jumps: a whole load test in milliseconds."""
