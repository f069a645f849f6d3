set(SOURCES last_submission.cc name_conflicts.cc peer_watch.cc stall_judge.cc stall_reporter.cc
  stall_verdict.cc stall_watch.cc)
set(NEEDS base observe state)
