"""What a test demands: SLOs, claims and mechanisms, as texts, as values, and judged."""
