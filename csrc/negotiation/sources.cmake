set(SOURCES agreement.cc ballot.cc description.cc negotiator.cc piggyback.cc records.cc)
set(NEEDS base)
