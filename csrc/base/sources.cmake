set(SOURCES buffer_pool.cc core_distance.cc event_loop.cc file_descriptor.cc free_port.cc
    unrecognized_variables.cc hmac.cc interfaces.cc interruption.cc large_memory.cc openssl.cc
    output_file.cc part_digests.cc processors.cc rank_names.cc sealed_sequence.cc secret.cc session.cc settings.cc
    settings_rows.cc sha256.cc sha256_blocks.cc status.cc streaming_copy.cc task.cc thread_placement.cc user_name.cc
    world_key.cc)
