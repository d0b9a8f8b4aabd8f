"""Routers: what divides the requests of a deployment over its replicas, a file each, and their door."""
