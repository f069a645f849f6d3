set(SOURCES announcements.cc c_status.cc checked_submission.cc gpu_place.cc gradient_lists.cc gradients.cc messages.cc observe.cc operations.cc perseus_gradients.cc perseus_process.cc process.cc process_sets.cc proofs.cc rendezvous.cc run.cc submit.cc waiting.cc)
set(NEEDS engine)
