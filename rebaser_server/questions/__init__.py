"""What is answered from the history without changing it."""
