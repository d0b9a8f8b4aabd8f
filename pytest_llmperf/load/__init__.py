"""The load generator: a process of its own that sends on time, stamps bytes, and parses nothing that can wait."""
