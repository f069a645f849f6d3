set(SOURCES acceptor.cc address_card.cc arrival_watch.cc control_messages.cc dialer.cc endpoint.cc
    framed_link.cc framed_link_marks.cc framed_link_parting.cc handshake.cc inbox.cc kept_links.cc
    link_connector.cc link_port.cc link_renewal.cc placement.cc meeting.cc mesh.cc peer_routes.cc send_queue.cc topology.cc
    mpi/mpi_fabric.cc
    shm/outbox.cc shm/ring.cc shm/shared_memory.cc shm/shm_channel.cc
    tcp/frame_guard.cc tcp/local_addresses.cc tcp/tcp_channel.cc)
set(NEEDS base observe mpi bootstrap rollcall)
