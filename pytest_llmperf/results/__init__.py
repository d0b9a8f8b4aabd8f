"""What was measured and concluded, as values; the run folder that keeps them, its one writer and its one reader."""
