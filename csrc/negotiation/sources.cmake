set(SOURCES ballot.cc description.cc negotiator.cc records.cc)
set(NEEDS base)
