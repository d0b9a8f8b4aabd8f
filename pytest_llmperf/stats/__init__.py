"""Statistical inference: tests, intervals and estimates as pure functions of samples."""
