"""Frozen data that the layers hand to each other. Nothing here computes, reads or waits."""
