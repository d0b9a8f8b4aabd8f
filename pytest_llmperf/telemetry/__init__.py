"""What the machine and the server say while they are measured."""
