set(SOURCES admission.cc plan.cc)
set(NEEDS negotiation)
