"""Counters of a server: names on metrics pages, and readings over all replicas."""
