"""What is said and stored: messages, subjects, streams, and the JetStream client rules."""
