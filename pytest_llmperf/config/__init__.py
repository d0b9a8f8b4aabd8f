"""TOML, ini and command line → one frozen, validated object."""
