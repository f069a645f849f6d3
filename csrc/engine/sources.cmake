set(SOURCES agreed_checks.cc agreements.cc blame.cc departures.cc engine.cc engine_parts.cc engine_scope.cc
    operation_tracker.cc quick_calls.cc internal_operations.cc message_host.cc peers.cc process_sets.cc submission_queue.cc termination.cc)
set(NEEDS watch execution messages rollcall)
