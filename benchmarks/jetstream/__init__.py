"""Our JetStream layer beside the clients of the nats-py repository: figures, and conformance."""
