"""GPU memory of servers: measured, predicted and shared."""
