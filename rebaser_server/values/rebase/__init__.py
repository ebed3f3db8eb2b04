"""What a batch does to a graph, and how a branch follows its head: pure, no I/O."""
