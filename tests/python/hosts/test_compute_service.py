"""Two jobs on hosts of their own, of which one computes the other's data."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from netlab import Hosts, lines

pytest.importorskip("keras")  # tests/python/tensorflow may be taken for TensorFlow

TRAIN = """
import sys
import tensorflow as tf
import horovod.tensorflow as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

hvd.init()
config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True)
with tf_data_service(config, hvd.rank()) as address:
    data = tf.data.Dataset.range(64).apply(
        tf.data.experimental.service.distribute("distributed_epoch", address, job_name="job")
    )
    found = hvd.allgather_object([int(x) for x in data])
print(sorted(sum(found, [])) == list(range(64)))
if hvd.rank() == 0:
    config.compute_client().shutdown()
"""


@pytest.mark.parametrize("side", ["compute", "training"])
def test_workers_and_dispatchers_are_found_on_other_hosts(
    side: str, hosts: Hosts, tmp_path: Path
) -> None:
    file = tmp_path / "service.json"
    (tmp_path / "train.py").write_text(TRAIN)
    worker = ["-m", "horovod.tensorflow.data.compute_worker", str(file), "--timeout", "120"]
    drop_in = ("--drop-in",)
    compute = hosts.start(
        "1:1,2:1", sys.executable, *worker, "--dispatcher-side", side, options=drop_in
    )
    with compute:
        program = [sys.executable, str(tmp_path / "train.py"), str(file)]
        training = hosts.run("0:1,3:1", *program, options=drop_in, timeout=200)
        said = compute.communicate(timeout=60)
    assert lines(training.stdout) == ["True", "True"], (training.stderr, said)
    assert compute.returncode == 0, said
