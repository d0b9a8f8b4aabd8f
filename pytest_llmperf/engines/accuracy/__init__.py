"""Questions of a task to a running server."""
