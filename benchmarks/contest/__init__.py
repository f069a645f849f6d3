"""Runs Perseus and its peers on the same work, in turns, on one machine.

    with Conductor(["perseus", "torch gloo"], ranks=2) as contest:
        times = contest.measure("collective.allreduce", elements=1024, seconds=0.5)

conductor.py starts every contender's ranks, lets one contender run at a time and collects times;
launch.py starts each contender's ranks; worker.py runs in each rank.
"""
