set(SOURCES admission.cc launch_order.cc plan.cc step_counter.cc tuner.cc tuning_log.cc)
set(NEEDS negotiation observe)
