"""Which actions and messages a rank has in a call of its pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from perseus.pipeline.calls import Call
from perseus.pipeline.exchange import Exchange, Greeting, Messages
from perseus.pipeline.plan import Plan
from perseus.pipeline.schedules import FORWARD_ONLY, Action
from perseus.pipeline.tied import TiedWeights

__all__ = ["Traffic"]


class Traffic:
    """The messages that this rank sends and receives."""

    def __init__(self, plan: Plan, tied: TiedWeights) -> None:
        self.plan = plan
        self.tied = tied

    def order(self, call: Call) -> Sequence[Action]:
        """Returns what this rank computes, in order."""
        return {"step": self._step, "predict": self._prediction}.get(call.method, [])

    def exchange(self, call: Call, number: int) -> Exchange:
        """Begins a call, the `number`th of the pipeline."""

        def messages(other: Call) -> Messages:
            return self._messages(other, number)

        tag = self.plan.routes.greeting(number)
        return Exchange(messages(call), Greeting(call, tag, self._peers, messages))

    def _messages(self, call: Call, number: int) -> Messages:
        sends, receives = self.plan.routes.of_actions(number, self.order(call))
        if call.method == "step":
            tied_sends, tied_receives = self.tied.routes(number)
            return sends | tied_sends, receives | tied_receives
        return sends, receives

    @cached_property
    def _peers(self) -> list[int]:
        """Returns the ranks that this one has messages for, or takes some from, in some call."""
        sends, receives = self._messages(Call("step"), 0)
        return sorted({*sends.values(), *receives.values()})

    @cached_property
    def _step(self) -> Sequence[Action]:
        plan = self.plan
        order = plan.schedule.order(plan.stages, plan.mesh.shape[1], plan.microbatches)
        return order[plan.place]

    @cached_property
    def _prediction(self) -> Sequence[Action]:
        plan = self.plan
        return FORWARD_ONLY.order(plan.stages, plan.mesh.shape[1], plan.microbatches)[plan.place]
