set(SOURCES control.cc names.cc operation.cc)
set(NEEDS base device collectives negotiation schedule)
