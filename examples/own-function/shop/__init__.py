"""What a shop computes."""
