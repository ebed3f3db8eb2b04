"""What JetStream sends: deliveries, status messages, stored messages."""
