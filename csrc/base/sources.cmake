set(SOURCES buffer_pool.cc event_loop.cc status.cc task.cc)
