set(SOURCES hmac.cc rendezvous_bootstrap.cc rendezvous_protocol.cc rendezvous_server.cc
    rendezvous_world.cc secret.cc sha256.cc socket.cc)
set(NEEDS base observe)
