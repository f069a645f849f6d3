set(SOURCES control.cc names.cc)
set(NEEDS base device collectives negotiation schedule)
