set(SOURCES buffer_pool.cc status.cc task.cc)
