set(SOURCES observe.cc operations.cc process.cc process_sets.cc rendezvous.cc submission.cc)
set(NEEDS engine)
