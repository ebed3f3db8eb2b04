"""What the server tells of streams and consumers."""
