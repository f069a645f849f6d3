"""DeePMD-kit's command `dp train`, whose Horovod is the drop-in: a potential for liquid argon.

    perseusrun --drop-in -np 2 python deepmd_argon.py

Its TensorFlow backend uses Horovod where that can be imported. Each rank draws other frames, so
there is no single process that draws the same.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import outcome
from deepmd.main import main as dp
from deepmd.tf.env import tf
from deepmd.tf.train.trainer import DPTrainer

#: Of all ranks together.
BATCH, STEPS = 6, 300
FRAMES, SIDE, DISTANCE = 48, 3, 3.8
EPSILON, SIGMA = 0.0104, 3.4  # eV, Å


def lennard_jones(coordinates: np.ndarray, box: float) -> tuple[float, np.ndarray]:
    """Returns the energy of atoms in a periodic box, and the force on each."""
    apart = coordinates[:, None] - coordinates[None]
    apart -= box * np.round(apart / box)
    squares = (apart**2).sum(axis=-1) + np.eye(len(coordinates)) * 1e9
    sixth = (SIGMA**2 / squares) ** 3
    energy = 2 * EPSILON * (sixth**2 - sixth).sum()
    pull = 24 * EPSILON * (2 * sixth**2 - sixth) / squares
    return float(energy), (pull[..., None] * apart).sum(axis=1)


def write_system(folder: Path) -> None:
    random = np.random.default_rng(0)
    box = SIDE * DISTANCE
    lattice = np.stack(np.meshgrid(*[np.arange(SIDE) * DISTANCE] * 3), axis=-1).reshape(-1, 3)
    frames = lattice + random.normal(0, 0.25, (FRAMES, *lattice.shape))
    energies, forces = zip(*(lennard_jones(frame, box) for frame in frames), strict=True)
    (folder / "set.000").mkdir(parents=True)
    (folder / "type.raw").write_text("0\n" * len(lattice))
    (folder / "type_map.raw").write_text("Ar\n")
    arrays = {
        "box": np.tile(np.eye(3).flatten() * box, (FRAMES, 1)),
        "coord": frames.reshape(FRAMES, -1),
        "energy": np.array(energies),
        "force": np.array(forces).reshape(FRAMES, -1),
    }
    for name, array in arrays.items():
        np.save(folder / f"set.000/{name}.npy", array)


def configuration(system: Path, size: int) -> dict[str, Any]:
    return {
        "model": {
            "type_map": ["Ar"],
            "descriptor": {
                "type": "se_e2_a",
                "rcut": 5.5,
                "rcut_smth": 1.0,
                "sel": [60],
                "neuron": [8, 16],
                "axis_neuron": 4,
                "seed": 1,
            },
            "fitting_net": {"neuron": [32, 32], "seed": 1},
        },
        "learning_rate": {
            "type": "exp",
            "start_lr": 0.005,
            "stop_lr": 1e-4,
            "decay_steps": 20,
            "scale_by_worker": "none",
        },
        "loss": {"type": "ener"},
        "training": {
            "training_data": {"systems": [str(system)], "batch_size": BATCH // size},
            "numb_steps": STEPS,
            "seed": 1,
            "disp_freq": 100,
        },
    }


def keep_what_is_trained(rank: int) -> None:
    train = DPTrainer.train

    def train_and_keep(self: DPTrainer, train_data: Any = None, valid_data: Any = None) -> None:
        train(self, train_data, valid_data)
        batches = [train_data.get_batch() for _ in range(8 * FRAMES // BATCH)]
        found = self.get_evaluation_results(batches)
        weights = self.sess.run(tf.trainable_variables())
        outcome.keep(rank, weights, "RMSE of forces", float(found["rmse_f"]))

    DPTrainer.train = train_and_keep


def main() -> None:
    rank, size = 0, 1
    if "--alone" not in sys.argv:
        import horovod.tensorflow as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
    folder = Path(os.environ["PROGRAM_OUTCOME"]) / f"files-{rank}"
    write_system(folder / "argon")
    os.chdir(folder)
    Path("input.json").write_text(json.dumps(configuration(folder / "argon", size)))
    keep_what_is_trained(rank)
    dp(["--tf", "train", "input.json"])


if __name__ == "__main__":
    main()
