"""Results as text, tables and files."""
