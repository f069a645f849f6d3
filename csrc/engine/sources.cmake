set(SOURCES agreed_checks.cc engine.cc engine_peers.cc engine_sets.cc)
set(NEEDS watch execution)
