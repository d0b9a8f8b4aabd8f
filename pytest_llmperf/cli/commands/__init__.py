"""The commands of llmperf, one per module; see `cli.parser`."""
