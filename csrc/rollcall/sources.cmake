set(SOURCES roll_call.cc)
set(NEEDS base)
