"""`llmperf baselines COMMAND`: one module each, as in `cli.commands`."""
