"""The data of dbn.py: digits, and recorded speech.

The speech is that of the packages asterisk-core-sounds-{en,es,fr,it,ru}-wav of Debian: prompts of
telephone systems at 8 kHz, by one speaker a language, under CC-BY-SA 3.0 (Italian and Russian:
CC-BY 3.0). They are downloaded by apt-get into a cache outside of the source tree, and nothing is
installed.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("en", "es", "fr", "it", "ru")
CACHE = Path.home() / ".cache" / "perseus-benchmarks"

RATE, FRAME, HOP, FFT, MELS, WINDOW = 8000, 200, 80, 256, 40, 11
#: A frame counts as speech if its energy is at most this far, in powers of e, below the loudest.
QUIET = 7.0

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Data:
    """Attributes:
    train, test: rows [rows, width] and their labels [rows].
    visible_units: the kind of unit that models a row.
    """

    name: str
    train: tuple[Floats, Labels]
    test: tuple[Floats, Labels]
    visible_units: str
    classes: int


def load(name: str, train: int | None = None, test: int | None = None) -> Data:
    """Returns "digits" or "speech", the same in every run; of the rows, at most so many."""
    whole = _digits() if name == "digits" else _speech()
    order = np.random.default_rng(1)
    parts = []
    for (rows, labels), wanted in ((whole.train, train), (whole.test, test)):
        chosen = order.permutation(len(rows))[:wanted]
        parts.append((rows[chosen], labels[chosen]))
    return Data(name, parts[0], parts[1], whole.visible_units, whole.classes)


def _digits() -> Data:
    sys.path.append(str(ROOT / "examples"))
    import mnist_file

    train, test = mnist_file.load()
    return Data("digits", train, test, "binary", 10)


def _speech() -> Data:
    """The speaker of each window of 11 frames of 40 log-mel energies. Prompts are either trained on
    or tested on, as a whole: every fifth is for testing."""
    file = CACHE / "speech-windows.npz"
    if not file.exists():
        _make_windows(file)
    with np.load(file) as stored:
        arrays = {name: stored[name] for name in stored.files}
    mean, deviation = arrays["train"].mean(0), arrays["train"].std(0)
    train, test = ((arrays[part] - mean) / deviation for part in ("train", "test"))
    return Data(
        "speech",
        (train.astype(np.float32), arrays["train_labels"]),
        (test.astype(np.float32), arrays["test_labels"]),
        "gaussian",
        len(LANGUAGES),
    )


def _make_windows(file: Path) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[npt.NDArray[np.generic]]] = {
        name: [] for name in ("train", "train_labels", "test", "test_labels")
    }
    for label, language in enumerate(LANGUAGES):
        for number, samples in enumerate(_prompts(_package(language))):
            part = "test" if number % 5 == 0 else "train"
            windows = windows_of(samples)
            found[part].append(windows)
            found[f"{part}_labels"].append(np.full(len(windows), label))
    whole = file.with_name(f".{file.name}.part")
    with whole.open("wb") as out:
        np.savez(out, **{name: np.concatenate(parts) for name, parts in found.items()})
    whole.replace(file)


def _package(language: str) -> Path:
    """Returns the package's file, and downloads it if need be."""
    name = f"asterisk-core-sounds-{language}-wav"
    if not (files := sorted(CACHE.glob(f"{name}_*.deb"))):
        done = subprocess.run(
            ["apt-get", "download", name], cwd=CACHE, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"apt-get download {name}: {done.stderr.strip()}")
        files = sorted(CACHE.glob(f"{name}_*.deb"))
    return files[-1]


def _prompts(package: Path) -> list[Floats]:
    """The samples of all recordings in a package that last for a second or longer."""
    unpacked = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE, check=True
    )
    prompts = []
    with tarfile.open(fileobj=io.BytesIO(unpacked.stdout)) as archive:
        for member in sorted(archive.getmembers(), key=lambda one: one.name):
            if not member.name.endswith(".wav") or not member.isfile():
                continue
            content = archive.extractfile(member)
            assert content is not None
            with wave.open(content) as sound:
                if (sound.getframerate(), sound.getsampwidth()) != (RATE, 2):
                    continue
                samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
            if len(samples) >= RATE:
                prompts.append(samples.astype(np.float32) / 32768)
    return prompts


def windows_of(samples: Floats) -> Floats:
    """Returns the log-mel energies of all windows of frames [windows, 11 * 40] amid speech.

    A frame has 25 ms, one begins every 10 ms, and every fifth window is taken.
    """
    frames = np.lib.stride_tricks.sliding_window_view(samples, FRAME)[::HOP]
    power = np.abs(np.fft.rfft(frames * np.hamming(FRAME), FFT)) ** 2
    energies = np.log(power @ _filters().T + 1e-8)
    windows = np.lib.stride_tricks.sliding_window_view(energies, WINDOW, axis=0)[::5]
    middle = energies.mean(1)[WINDOW // 2 :: 5][: len(windows)]
    spoken = windows[middle > middle.max(initial=-np.inf) - QUIET]
    return spoken.transpose(0, 2, 1).reshape(len(spoken), -1).astype(np.float32)


def _filters() -> Floats:
    """Triangular filters [mels, bins], evenly spaced in mels between 0 and half the rate."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1)
    bins = np.arange(FFT // 2 + 1) * RATE / FFT
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return np.clip(np.minimum(rising, falling), 0, None).astype(np.float32)
