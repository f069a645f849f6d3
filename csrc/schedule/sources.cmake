set(SOURCES admission.cc launch_order.cc plan.cc step_counter.cc tuner.cc tuning.cc
  tuning_log.cc work_watch.cc)
set(NEEDS negotiation observe)
