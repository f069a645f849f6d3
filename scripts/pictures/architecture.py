"""The rooms of Perseus, and the way of a gradient through them."""

from __future__ import annotations

from pictures.canvas import Canvas

FILE = "architecture.svg"
#: Left, top, width, height, colour, name, where its text begins, and lines of text below the name.
#: A first line that begins at a number of pixels is beside the name.
ROOMS = (
    (
        *(20, 56, 490, 56, "pale amber", "perseus/"),
        (104, "torch/horovod: hooks, DistributedOptimizer"),
        (104, "run: perseusrun, one agent a host"),
    ),
    (
        *(20, 122, 286, 48, "pale amber", "perseus_core/"),
        (138, "the engine for arrays"),
        (32, "csrc/python: submit by address, callbacks"),
    ),
    (
        *(316, 122, 194, 48, "pale amber", "your C or C++ program"),
        None,
        (328, "examples/c/allreduce.c"),
    ),
    (20, 180, 490, 34, "pale blue", "capi/", (76, "perseus.h, the C99 interface: the one door")),
    (
        *(20, 224, 490, 66, "pale blue", "engine/"),
        (92, "one thread, one event loop"),
        (32, "submission_queue, agreements, operation_tracker;"),
        (32, "peers, termination"),
    ),
    (
        *(20, 300, 146, 66, "pale blue", "watch/"),
        None,
        (32, "stalls, silent peers,"),
        (32, "names in conflict"),
    ),
    (
        *(176, 300, 146, 66, "pale blue", "messages/"),
        None,
        (188, "between two ranks:"),
        (188, "messenger, mailbox"),
    ),
    (
        *(332, 300, 178, 66, "pale blue", "execution/"),
        None,
        (344, "executor.cc, shard_run.cc:"),
        (344, "what was agreed; gpu/"),
    ),
    (
        *(20, 376, 490, 34, "pale blue", "state/"),
        (84, "what an operation, a handle, a name and a process set are"),
    ),
    (
        *(270, 420, 240, 66, "pale blue", "negotiation/"),
        None,
        (282, "negotiator.cc, ballot.cc:"),
        (282, "log2 N messages, no master"),
    ),
    (
        *(20, 420, 240, 66, "pale blue", "schedule/"),
        None,
        (32, "plan.cc: merge and shard"),
        (32, "admission.cc, tuner.cc: streams"),
    ),
    (
        *(20, 496, 490, 48, "pale blue", "collectives/"),
        (116, "direct, ring, recursive doubling,"),
        (116, "hierarchical, tree, chain"),
    ),
    (
        *(20, 554, 346, 66, "pale blue", "transport/"),
        (118, "framed_link.cc: messages cut into frames"),
        (32, "shm/ rings, tcp/ several connections, mpi/"),
        (32, "mesh.cc, handshake.cc: who is reached how"),
    ),
    (
        *(376, 554, 134, 66, "pale blue", "bootstrap/, mpi/"),
        None,
        (388, "rendezvous,"),
        (388, "MPI, Slurm"),
    ),
    (
        *(20, 630, 490, 48, "pale blue", "device/, codec/"),
        (144, "pack, scale, cast, NaN check in one pass;"),
        (144, "fp16, bf16, your own"),
    ),
    (
        *(20, 688, 490, 48, "pale grey", "base/"),
        (76, "status, settings, event loop, coroutines, hashes:"),
        (76, "depends on nothing above"),
    ),
)
#: Where a gradient stops on its way, and what happens there.
STOPS = (
    ((486, 197), "register", "a name becomes a small number, once", "state/names.cc"),
    (
        *((486, 244), "submit", "to the engine's queue; never waits"),
        "capi/submit.cc, engine/submission_queue.cc",
    ),
    ((486, 440), "agree", "all ranks learn the same ordered list", "negotiation/negotiator.cc"),
    ((240, 440), "plan", "merged, cut into shards, admitted", "schedule/plan.cc, admission.cc"),
    (
        *((486, 644), "pack", "into one buffer, scaled and coded"),
        "device/cpu/pack.cc, codec/",
    ),
    ((462, 516), "move", "reduced on the way, frame by frame", "collectives/*.cc, transport/"),
    ((458, 660), "unpack", "back to the tensors, scaled", "device/cpu/pack.cc"),
    ((486, 272), "complete", "status, wake who waits, call back", "engine/operation_tracker.cc"),
)
#: Between the rooms, so that no line crosses a text.
WAYS = (
    "M170 112 V121",
    "M170 170 V179",
    "M420 170 V179",
    "M486 208 V233",
    "M497 244 H515 V440 H498",
    "M486 429 V415 H240 V428",
    "M240 451 V491 H515 V644 H498",
    "M486 633 V625 H371 V549 H462 V528",
)


def draw() -> str:
    canvas = Canvas(776, "The rooms of Perseus, and the way of a gradient through them", 11.5)
    canvas.heading("The rooms of Perseus")
    for left, top, width, height, fill, name, *lines in ROOMS:
        canvas.box(left, top, width, height, fill)
        canvas.text(left + 12, top + 20, name, size=12.5, bold=True)
        for at, line in enumerate(lines):
            if line is not None:
                canvas.text(line[0], top + 20 + 17 * at, line[1])
    canvas.box(520, 224, 50, 454, "pale green")
    canvas.text(541, 451, "observe/", size=12.5, bold=True, anchor="middle", turned=True)
    canvas.text(559, 451, "timeline, counters, log", anchor="middle", turned=True)
    canvas.path("M20 590 H10 V752 H30", dash="5 4")
    canvas.text(36, 756, "links to the other ranks, each built like this one", colour="muted")
    for way in WAYS:
        canvas.path(way, "accent", width=1.6, tip=True)
    canvas.text(592, 30, "Life of a gradient", size=15, bold=True)
    for number, ((x, y), name, what, where) in enumerate(STOPS, start=1):
        canvas.number(x, y, number)
        top = 82 + 84 * (number - 1)
        canvas.number(602, top - 4, number)
        canvas.text(622, top, name, size=12.5, bold=True)
        canvas.text(622, top + 18, what)
        canvas.text(622, top + 35, where, size=10.4, colour="muted", code=True)
    return canvas.document()
