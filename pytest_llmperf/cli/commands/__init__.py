"""One command a module: see `cli.parser`."""
