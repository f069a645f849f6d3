"""HOST:SLOTS...: serves the rendezvous of Horovod over Gloo; prints the port, then waits."""

import sys
import threading

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

hosts = parse_hosts(",".join(sys.argv[1:]))
server = RendezvousServer()
port = server.start()
server.init(get_host_assignments(hosts, sum(host.slots for host in hosts)))
print(port, flush=True)
threading.Event().wait()
