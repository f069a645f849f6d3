set(SOURCES buffer_pool.cc event_loop.cc file_descriptor.cc foreign_variables.cc interfaces.cc
    interruption.cc large_memory.cc settings.cc settings_rows.cc status.cc streaming_copy.cc task.cc)
