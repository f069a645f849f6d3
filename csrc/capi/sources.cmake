set(SOURCES gradient_lists.cc gradients.cc observe.cc operations.cc process.cc process_sets.cc rendezvous.cc submission.cc waiting.cc)
set(NEEDS engine)
