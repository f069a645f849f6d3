set(SOURCES admission.cc plan.cc tuner.cc)
set(NEEDS negotiation)
