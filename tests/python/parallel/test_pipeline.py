"""Pipelines compute what the model computes in one piece."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from pipeline_models import (  # noqa: E402
    in_one_process,
    make_batch,
    make_model,
    make_pipeline,
    require_gradients,
    stages_of,
)

import perseus.torch.horovod as hvd  # noqa: E402
from perseus.pipeline.schedules import SCHEDULES  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")


@pytest.mark.parametrize("rows", [24, 29])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_loss_and_gradients_are_those_of_the_whole_model(schedule, rows):
    model = make_model(2 * stages_of(schedule))
    microbatches = 2 * hvd.size()
    pipeline = make_pipeline(model, schedule, microbatches)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    whole = make_model(2 * stages_of(schedule))
    for seed in range(3):
        x, target = make_batch(rows, seed)
        expected_loss, expected = in_one_process(whole, x, target)
        optimizer.zero_grad()
        loss, output = pipeline.step(x, target, outputs=True)
        assert abs(loss - expected_loss) < 1e-12
        assert require_gradients(pipeline, expected) > 0
        has_last = stages_of(schedule) - 1 in pipeline.modules
        assert (output is not None) == has_last
        if has_last:
            assert (output - whole(x)).abs().max() < 1e-12
        optimizer.step()
        for name, one in whole.named_parameters():
            one.data -= 0.1 * expected[name]
    prediction = pipeline.predict(x)
    assert (prediction is None) != has_last
    if has_last:
        assert (prediction - whole(x)).abs().max() < 1e-12
        assert not prediction.requires_grad
