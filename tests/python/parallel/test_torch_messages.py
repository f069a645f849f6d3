"""Messages between two ranks, of PyTorch's tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import perseus.torch.horovod as hvd  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")

DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
]


def neighbours():
    return (hvd.rank() + 1) % hvd.size(), (hvd.rank() - 1) % hvd.size()


def values(rank, shape, dtype):
    generator = torch.Generator().manual_seed(rank)
    return (10 * torch.rand(shape, generator=generator)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_message_carries_its_shape_and_dtype(dtype):
    to, from_ = neighbours()
    for tag, shape in enumerate([(), (0,), (3, 5), (40_000,)]):
        sending = hvd.isend(values(hvd.rank(), shape, dtype), to, tag=tag)
        tensor, source, got = hvd.recv(source=from_, tag=tag)
        assert (source, got, tensor.shape, tensor.dtype) == (from_, tag, shape, dtype)
        assert torch.equal(tensor, values(from_, shape, dtype))
        assert hvd.synchronize(sending) is None


def test_a_message_goes_into_the_tensor_that_is_given(device):
    to, from_ = neighbours()
    expected = values(from_, (6, 700), torch.float32)
    for out in (torch.zeros(6, 700), torch.zeros(700, 6).T, torch.zeros(6, 1400)[:, ::2]):
        out = out.to(device)
        sending = hvd.isend(values(hvd.rank(), (6, 700), torch.float32).to(device), to)
        message = hvd.synchronize(hvd.irecv(out, from_))
        assert message == (out, from_, 0) or message.tensor is out
        assert torch.equal(out.cpu(), expected)
        hvd.synchronize(sending)


def test_what_is_sent_may_be_any_view(device):
    to, from_ = neighbours()
    whole = torch.arange(60.0, device=device, requires_grad=True)
    for view in (whole, whole[::3], whole.view(6, 10).T, whole.new_ones(1).expand(5)):
        sending = hvd.isend(view, to)
        assert torch.equal(hvd.recv(source=from_).tensor, view.detach().cpu())
        hvd.synchronize(sending)
    received = hvd.isend(whole, to), hvd.irecv(whole, from_)  # a leaf may be written to
    for handle in received:
        hvd.synchronize(handle)


def test_two_ranks_may_both_send_first():
    to, from_ = neighbours()
    for elements in (10, 100_000):
        hvd.send(torch.full((elements,), float(hvd.rank())), to, tag=1)
        assert (hvd.recv(source=from_, tag=1).tensor == from_).all()


def test_what_does_not_fit_is_an_error():
    to, from_ = neighbours()
    sending = hvd.isend(torch.zeros(3), to)
    with pytest.raises(hvd.HorovodInternalError, match=r"sent float32\[3\].*asked for int64\[3\]"):
        hvd.recv(torch.zeros(3, dtype=torch.int64), from_)
    if to != hvd.rank():
        hvd.synchronize(sending)
    with pytest.raises(TypeError, match=r"tensor is list; it takes a torch\.Tensor"):
        hvd.send([1.0], to)
    with pytest.raises(hvd.HorovodInternalError, match="could not take part: TypeError"):
        hvd.recv(source=from_)
    sending = hvd.isend(torch.zeros(3), to)
    with pytest.raises(ValueError, match="several elements of the tensor share one place"):
        hvd.recv(torch.zeros(1).expand(3), from_)
    if to != hvd.rank():
        hvd.synchronize(sending)
    with pytest.raises(ValueError, match="tag is -5; it must be 0 or more, or None for any"):
        hvd.irecv(tag=-5)
    with pytest.raises(ValueError, match="does not belong to process set 0"):
        hvd.send(torch.zeros(1), hvd.size())


@pytest.mark.parametrize("elements", [500, 300_000])
@pytest.mark.parametrize(
    ("compression", "unit"),
    [(hvd.Compression.none, 0), (hvd.Compression.fp16, 2**-11), ("bf16", 2**-8)],
    ids=["none", "fp16", "bf16"],
)
def test_a_compressed_message(compression, unit, elements, device):
    to, from_ = neighbours()
    sent = values(hvd.rank(), (elements,), torch.float32).to(device)
    sending = hvd.isend(sent, to, compression=compression)
    tensor = hvd.recv(source=from_).tensor
    expected = values(from_, (elements,), torch.float32).double()
    assert ((tensor.double() - expected).abs() <= unit * expected.abs()).all()
    hvd.synchronize(sending)


def test_a_compression_that_is_not_one_for_messages():
    to, from_ = neighbours()
    cases = [
        (torch.zeros(3, dtype=torch.float64), hvd.Compression.fp16, ValueError, "codec is 'fp16'"),
        (torch.zeros(3), "gzip", ValueError, "no codec is named 'gzip'; there are: none, fp16"),
        (torch.zeros(3), 16, TypeError, "compression is 16; it must be Compression.none"),
    ]
    for tensor, compression, kind, why in cases:
        with pytest.raises(kind, match=why):
            hvd.send(tensor, to, compression=compression)
        with pytest.raises(hvd.HorovodInternalError, match=f"could not take part: .*{why}"):
            hvd.recv(source=from_)
