"""What an agreement costs each rank: messages and bytes, at 2 to 32 real processes.

python benchmarks/agreement.py [--ranks 2 4 8 16 32] [--names 100] [--rounds 200]

Each round submits allreduces of four bytes under known names and waits for them. The engine counts
the messages where it hands them to the links; the table gives the smallest and the largest count
over the ranks, so that a rank with more to do than the others would show. The bound is
ceil(log2 N): dissemination (Hensgen, Finkel, Manber 1988).
"""

import argparse
import math

import perseus.run


def measure(rounds: int, names: int) -> tuple[int, int, int]:
    """(agreements, messages sent, bytes sent) of this rank over rounds of `names` operations."""
    import numpy as np

    import perseus_core as core

    core.init()
    values = [np.zeros(1, np.float32) for _ in range(names)]

    def one_round() -> None:
        handles = [
            core.allreduce_async(value, out=value, name=f"value{i}")
            for i, value in enumerate(values)
        ]
        for handle in handles:
            handle.wait()

    one_round()  # the names are described once
    core.barrier()
    before = core.counters()
    for _ in range(rounds):
        one_round()
    after = core.counters()
    core.barrier()
    core.shutdown()
    counted = ("agreements", "agreement_messages_sent", "agreement_bytes_sent")
    agreements, messages, sent = (after[name] - before[name] for name in counted)
    return agreements, messages, sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--names", type=int, default=100, help="tensors in flight at once")
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    print("ranks  ceil(log2 N)  messages an agreement (least .. most)  bytes a message  rank 0")
    for size in args.ranks:
        results = perseus.run.run(measure, args=(args.rounds, args.names), num_proc=size)
        per_agreement = [messages / agreements for agreements, messages, _ in results]
        size_of_message = sum(r[2] for r in results) / sum(r[1] for r in results)
        print(
            f"{size:5d}  {math.ceil(math.log2(size)):12d}"
            f"  {min(per_agreement):17.2f} .. {max(per_agreement):<16.2f}"
            f"  {size_of_message:15.0f}  {per_agreement[0]:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
