set(SOURCES counters.cc json.cc log.cc timeline.cc timeline_file.cc)
set(NEEDS base)
