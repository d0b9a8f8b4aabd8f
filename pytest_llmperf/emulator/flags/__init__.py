"""The engines' own command lines, resolved as the engines would on that hardware."""
