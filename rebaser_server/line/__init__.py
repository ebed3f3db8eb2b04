"""One change set's requests, one after another, and what each of them comes to."""
