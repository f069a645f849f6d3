set(SOURCES admission.cc plan.cc tuner.cc tuning_log.cc)
set(NEEDS negotiation observe)
