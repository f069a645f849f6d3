set(SOURCES ballot.cc description.cc negotiator.cc)
set(NEEDS base)
