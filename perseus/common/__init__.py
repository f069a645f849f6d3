"""What the adapters share: exceptions, process sets, reductions, and the process's place."""
