"""Control requests to a server: connections, bodies of requests, answers."""
