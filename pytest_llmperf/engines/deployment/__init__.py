"""Deployments: equal servers behind a router, started, watched and stopped together."""
