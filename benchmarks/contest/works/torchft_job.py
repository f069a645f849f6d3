"""torchft's lighthouse and its replicas, each of which is started again when it ends.

python torchft_job.py REPLICAS
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from torchft.coordination import LighthouseServer


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # So that a replica that has been killed is left out at once, and one that starts is not waited
    # for: the defaults are 5 s and 60 s.
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100, heartbeat_timeout_ms=1000
    )
    environment = {**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse.address()}
    command = [sys.executable, str(Path(__file__).with_name("torchft_training.py"))]
    replicas = [
        subprocess.Popen(command, env={**environment, "REPLICA": str(number)})
        for number in range(int(sys.argv[1]))
    ]
    while True:
        for number, replica in enumerate(replicas):
            if replica.poll() is not None:
                replicas[number] = subprocess.Popen(command, env=environment)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
