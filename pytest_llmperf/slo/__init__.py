"""Requirements of tests (SLOs, claims and mechanisms) as texts and as values."""
