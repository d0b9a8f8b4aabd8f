"""Released versions of engines: what is stored of them, and what changed between two."""
