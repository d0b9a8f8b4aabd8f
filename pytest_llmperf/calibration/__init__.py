"""How often verdicts are wrong: thousands of emulated suite runs whose truth is known, and the noise of one's own
machine. Knows nothing of pytest."""
