"""A job in which ranks train and another one joins, which gets the state from all of them, in each
framework. It ends well if the state in the end is, bit for bit, that of one process alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Before `state` is made. All ranks are on one host; here each gives the state as if it had one of
#: its own. If DIES is a launched rank, this one kills itself once half of what it gives to the new
#: rank is on its way. If DIES_AFTER has it, it does so once it has given everything.
BEFORE = """
import os, pathlib, signal, time
import numpy as np
import perseus_core as core
from perseus.common import state_sources
from perseus.common.elastic import State as AnyState
from perseus.common.state_sources import Group

def begin(hvd):
    hvd.init()
    global is_joiner, launched, broadcast
    is_joiner = os.environ["PERSEUS_ELASTIC_MEETING"] != "0"
    launched = "joiner" if is_joiner else os.environ["PERSEUS_RANK"]
    state_sources.groups_of = lambda hosts, holders: [
        Group(tuple(holders), tuple(r for r in range(core.size()) if r not in holders))
    ]
    broadcast, core.broadcast_async = core.broadcast_async, dying_broadcast
    if launched in os.environ["DIES_AFTER"].split():
        AnyState.has_synced = dying_has_synced

has_synced = AnyState.has_synced

def dying_has_synced(state):
    if core.size() > int(os.environ["STARTS"]):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    has_synced(state)

def dying_broadcast(array, root, **options):
    if launched in os.environ["DIES"].split() and root == core.rank() and array.size > 100000:
        half = array[: array.size // 2]
        out = options["out"][: array.size // 2]
        broadcast(half, root, **{**options, "name": options["name"] + ".half", "out": out})
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    return broadcast(array, root, **options)

def seed():
    return 7 if is_joiner else 1
"""

#: The same training of TensorFlow's two kinds, by NumPy.
MOMENTUM_ALONE = """
def values_alone(steps):
    weight, momentum = first(1), np.zeros((1000, 300), np.float32)
    for number in range(steps):
        momentum = np.float32(0.5) * momentum + np.float32(1 + number % 2)
        weight -= np.float32(0.125) * momentum
    return [weight, momentum]
"""

#: A kind of state has the functions step(), which trains, own_add(value), which changes what each
#: rank has of its own, own_value(), values(), and values_alone(steps): those of one process.
KINDS = {
    "torch": """
import torch
import perseus.torch.horovod as hvd
begin(hvd)

def made(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(1000, 300)
    return model, torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)

def one_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()

model, optimizer = made(seed())
model.register_buffer("own", torch.tensor([100.0]))
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, step=0, together=0)
step = lambda: one_step(model, optimizer)
own_add = lambda value: model.own.add_(value)
own_value = lambda: float(model.own)

def all_of(model, optimizer):
    momenta = [optimizer.state[each]["momentum_buffer"] for each in model.parameters()]
    return [each.detach().numpy() for each in (*model.parameters(), *momenta)]

values = lambda: all_of(model, optimizer)

def values_alone(steps):
    model, optimizer = made(1)
    for _ in range(steps): one_step(model, optimizer)
    return all_of(model, optimizer)
""",
    "tensorflow": """
import tensorflow as tf
import perseus.tensorflow.horovod as hvd
begin(hvd)

first = lambda seed: np.random.default_rng(seed).normal(size=(1000, 300)).astype(np.float32)
weight, momentum = tf.Variable(first(seed())), tf.Variable(tf.zeros((1000, 300)))
own = tf.Variable(100.0)
state = hvd.elastic.TensorFlowState([weight, momentum, own], step=0, together=0)

def step():
    gradient = hvd.allreduce(tf.fill(weight.shape, 1.0 + state.step % 2), name="gradient")
    momentum.assign(0.5 * momentum + gradient)
    weight.assign_sub(0.125 * momentum)

own_add = lambda value: own.assign_add(value)
own_value = lambda: float(own)
values = lambda: [weight.numpy(), momentum.numpy()]
"""
    + MOMENTUM_ALONE,
    "session": """
import tensorflow as tf
import perseus.tensorflow.horovod as hvd
begin(hvd)
v1 = tf.compat.v1

first = lambda seed: np.random.default_rng(seed).normal(size=(1000, 300)).astype(np.float32)
with tf.Graph().as_default():
    weight, momentum = tf.Variable(first(seed())), tf.Variable(tf.zeros((1000, 300)))
    own, added, ones = tf.Variable(100.0), v1.placeholder(tf.float32), tf.ones((1000, 300))
    gradient = hvd.allreduce(added * ones, name="gradient")
    next_momentum = v1.assign(momentum, 0.5 * momentum + gradient)
    step_op = v1.assign_sub(weight, 0.125 * next_momentum)
    own_op = v1.assign_add(own, added)
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    variables = [weight, momentum, own]
    state = hvd.elastic.TensorFlowState(variables, session, step=0, together=0)
    session.graph.finalize()

step = lambda: session.run(step_op.op, {added: 1.0 + state.step % 2})
own_add = lambda value: session.run(own_op.op, {added: value})
own_value = lambda: float(session.run(own))
values = lambda: session.run([weight, momentum])
"""
    + MOMENTUM_ALONE,
    "keras": """
import keras
KERAS_STATE
begin(hvd)
is_keras_3 = hasattr(keras, "ops")
total = keras.ops.sum if is_keras_3 else keras.backend.sum
numbers_of = keras.ops.convert_to_numpy if is_keras_3 else lambda variable: variable.numpy()

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(300)
        constant = keras.initializers.Constant(100.0)
        self.own = self.add_weight(shape=(1,), initializer=constant, trainable=False)
    def call(self, x):
        return self.dense(x)

def made(seed, distributed=lambda optimizer: optimizer):
    model = Net()
    model(np.zeros((1, 1000), np.float32))
    generator = np.random.default_rng(seed)
    model.dense.set_weights([generator.normal(size=(1000, 300)), generator.normal(size=300)])
    optimizer = distributed(keras.optimizers.SGD(0.125, momentum=0.5))
    model.compile(optimizer, lambda wanted, found: total(found), jit_compile=False)
    return model

def one_step(model):
    model.train_on_batch(np.ones((1, 1000), np.float32), np.ones((1, 300), np.float32))

model = made(seed(), hvd.DistributedOptimizer)
state = State(model, step=0, together=0)
step = lambda: one_step(model)
own_add = lambda value: model.own.assign(model.own + value)
own_value = lambda: float(numbers_of(model.own)[0])

def all_of(model):
    arrays = [*model.dense.weights, *model.optimizer.variables]
    return [numbers_of(each) for each in arrays]

values = lambda: all_of(model)

def values_alone(steps):
    model = made(1)
    for _ in range(steps): one_step(model)
    return all_of(model)
""",
    "mxnet": """
import mxnet as mx
import perseus.mxnet.horovod as hvd
begin(hvd)

def made(seed, trainer=lambda params, *of: mx.gluon.Trainer(params, *of, kvstore=None)):
    mx.random.seed(seed)
    net = mx.gluon.nn.Dense(300, in_units=1000, prefix="net_")
    net.initialize(mx.init.Normal(1.0))
    return net, trainer(net.collect_params(), "sgd", {"learning_rate": 0.125, "momentum": 0.5})

def one_step(net, trainer):
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 1000))).sum()
    loss.backward()
    trainer.step(1)

net, trainer = made(seed(), hvd.DistributedTrainer)
others = mx.gluon.ParameterDict("others_")
own = others.get("own", shape=(1,), init=mx.init.Constant(100.0), grad_req="null")
own.initialize()
state = hvd.elastic.MXNetState(net=net, trainer=trainer, others=others, step=0, together=0)
step = lambda: one_step(net, trainer)
own_add = lambda value: own.set_data(own.data() + value)
own_value = lambda: own.data().asscalar()

def all_of(net, trainer):
    names = [param.name for param in trainer._params]
    states = trainer._updaters[0].states
    momenta = [states[names.index(each.name)] for each in (net.weight, net.bias)]
    arrays = [net.weight.data(), net.bias.data(), *momenta]
    return [each.asnumpy() for each in arrays]

values = lambda: all_of(net, trainer)

def values_alone(steps):
    net, trainer = made(1)
    for _ in range(steps): one_step(net, trainer)
    return all_of(net, trainer)
""",
}

#: The names of modules and states of Keras.
KERAS_STATES = {
    "keras": "import perseus.keras as hvd\nState = hvd.elastic.KerasState",
    "tensorflow-keras": """import perseus.tensorflow.horovod.keras as hvd
from perseus.tensorflow.horovod.elastic import TensorFlowKerasState as State""",
}

AFTER = """
folder = pathlib.Path(os.environ["FOLDER"])
starts = int(os.environ["STARTS"])

def use(hosts):
    (folder / "new").write_text(hosts + "\\n")
    (folder / "new").rename(folder / "hosts")

@hvd.elastic.run
def train(state):
    while state.together < 5:
        step()
        state.step += 1
        joined = np.array([float(is_joiner)], np.float32)
        if core.allreduce(joined, core.ReduceOp.SUM, name="joined")[0] > 0:
            state.together += 1
        else:
            own_add(1.0 + core.rank())
        if core.rank() == 0 and state.step == 3: use(f"localhost:{starts + 1}")
        time.sleep(0.01)
        state.commit()

train(state)
own = core.allgather(np.array([own_value()]), name="own")
assert own[0] > 100 and (own == own[0]).all(), own  # one rank's, and not a mixture
for ours, wanted in zip(values(), values_alone(state.step), strict=True):
    np.testing.assert_array_equal(ours, wanted)
print("well", core.size(), launched, flush=True)
"""


def job(
    folder: Path, kind: str, dies: str, starts: int = 2, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Runs the job.

    Args:
      kind: of KINDS or KERAS_STATES.
      dies: launched ranks, such as "0 1"; "" for none.
      starts: the ranks that begin.
      settings: more variables of its environment.
    """
    (folder / "hosts").write_text(f"localhost:{starts}\n")
    of_keras = kind in KERAS_STATES
    own = KINDS["keras"].replace("KERAS_STATE", KERAS_STATES[kind]) if of_keras else KINDS[kind]
    (folder / "train.py").write_text(BEFORE + own + AFTER)
    most = str(starts + 1)
    command = [sys.executable, "-m", "perseus.run", "-np", str(starts), "--min-np", "1"]
    command += ["--max-np", most, "--blacklist-by", "slot"]
    command += ["--host-discovery-script", f"cat {folder}/hosts"]
    environment = {
        **os.environ,
        "FOLDER": str(folder),
        "DIES": dies,
        "DIES_AFTER": "",
        "STARTS": str(starts),
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **settings,
    }
    command += ["--verbose", sys.executable, str(folder / "train.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


def _ended_well(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Returns the size of the last world, and which rank has come to the end, for each."""
    assert result.returncode == 0, result.stdout + result.stderr
    return sorted(line.split("well ")[1] for line in result.stdout.splitlines() if "well " in line)


def all_get_it(result: subprocess.CompletedProcess[str], starts: int) -> None:
    """Asserts that all ranks have come to the end, in one world."""
    wanted = [f"{starts + 1} {each}" for each in (*range(starts), "joiner")]
    assert _ended_well(result) == wanted


def others_go_on(result: subprocess.CompletedProcess[str], starts: int, dies: str) -> None:
    """Asserts that all ranks but one have come to the end, in one world."""
    left = [str(each) for each in range(starts) if str(each) != dies]
    wanted = [f"{starts} {each}" for each in (*left, "joiner")]
    assert _ended_well(result) == wanted


def joiner_goes_on_alone(result: subprocess.CompletedProcess[str]) -> None:
    """Asserts that the new rank alone has come to the end."""
    assert _ended_well(result) == ["1 joiner"]


def state_is_lost(result: subprocess.CompletedProcess[str]) -> None:
    """Asserts that the job has ended, and has said why."""
    assert result.returncode != 0
    assert "well" not in result.stdout
    why = "no worker is left that has the state of the job's last world"
    assert why in result.stderr, result.stdout + result.stderr
