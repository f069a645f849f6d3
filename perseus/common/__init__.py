"""The parts that all adapters share: exceptions, process sets, reductions, ranks."""
