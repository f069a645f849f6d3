set(SOURCES agreed_checks.cc control.cc engine.cc engine_peers.cc engine_sets.cc executor.cc finite_check.cc mix_ups.cc names.cc peer_watch.cc results.cc shard_run.cc stall_watch.cc trace.cc whole_run.cc)
set(NEEDS base observe codec device bootstrap transport collectives negotiation schedule)
