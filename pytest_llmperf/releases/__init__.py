"""Stored facts about released versions of engines, and the differences between two versions."""
