"""Key-value buckets and object stores (ADR-8, ADR-20)."""
