set(SOURCES environment.cc hmac.cc rendezvous_bootstrap.cc rendezvous_protocol.cc
    rendezvous_server.cc rendezvous_world.cc secret.cc sha256.cc slurm.cc socket.cc)
set(NEEDS base observe)
