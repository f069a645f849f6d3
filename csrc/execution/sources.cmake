set(SOURCES error_feedback.cc executor.cc finite_check.cc fusion_buffer.cc gathered_run.cc host_tensor.cc results.cc
    run_options.cc shard_run.cc size_exchange.cc trace.cc unsharded_run.cc
    gpu/gpu_launches.cc gpu/gpu_search.cc gpu/nccl_group.cc gpu/nccl_run.cc)
set(NEEDS base observe codec device transport collectives schedule state)
