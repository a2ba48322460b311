"""The durability barrier, where the logs are: in a worker that sees them, or in an agent that it asks."""
