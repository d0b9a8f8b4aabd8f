"""The server's side of HTTP: what requests ask, the bytes of answers, metrics, and the server in real time."""
