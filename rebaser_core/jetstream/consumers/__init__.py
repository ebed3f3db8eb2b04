"""Everything that reads a stream: ordered, pull and push consumers."""
