set(SOURCES name_conflicts.cc peer_watch.cc stall_reporter.cc stall_watch.cc)
set(NEEDS base observe state)
