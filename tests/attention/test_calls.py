"""Calls of attention kernels on GPUs that are not here, and tensors that travel to a worker."""

from __future__ import annotations

import pytest

from conformance.errors import NotSupported
from conformance.faults import attention_calls as faults
from conformance.stacks.attention_calls_protocol import CallRequest
from conformance.stacks.reference_attention_calls import calls
from suites.attention.test_call import _wrong

CAPABILITIES = ((9, 0), (10, 0), (12, 0))


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_written_down_calls_are_right(capability, ratio):
    made = calls(CallRequest(24, 5, ratio, capability))
    assert not _wrong(made, "here", 24, ratio, capability[0])


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", ["renamed", "heads_unpadded", "sinks_of_rank", "slots_long", "entries_left_out"])
def test_every_fault_is_seen(capability, name):
    made = calls(CallRequest(24, 5, 4, capability))
    getattr(faults, name).call(made)
    assert _wrong(made, "here", 24, 4, capability[0])


def test_another_capability_is_not_supported():
    with pytest.raises(NotSupported, match=r"capability 8\.0"):
        calls(CallRequest(24, 5, 0, (8, 0)))


def test_no_call_is_no_right_call():
    assert _wrong([], "here", 24, 0, 9)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_flashinfer_binds(capability):
    pytest.importorskip("flashinfer", reason="FlashInfer is not installed beside this harness")
    from conformance.stacks.flashinfer.attention import calls as bound

    for ratio in (0, 4, 128):
        assert not _wrong(bound(CallRequest(24, 5, ratio, capability)), "here", 24, ratio, capability[0])


def test_flashinfer_pads_to_what_its_kernels_take():
    torch = pytest.importorskip("torch")
    from conformance.errors import StackRefused
    from conformance.stacks.attention_protocol import AttendCall, Pages, Sparse
    from conformance.stacks.flashinfer import attention
    from conformance.stacks.flashinfer.attention_calls import _one_pool

    assert [attention.padded(24, capability) for capability in CAPABILITIES] == [24, 32, 32]
    with pytest.raises(StackRefused, match="129 were asked for"):
        attention.padded(129, (12, 0))
    rows = torch.arange(2 * 2 * 512).bfloat16().view(2, -1).view(torch.uint8)
    window = Sparse(
        Pages(rows, 2), torch.tensor([[1, -1, 3], [0, 2, 2]], dtype=torch.int32), torch.tensor([3, 1]).int()
    )
    entries = Sparse(Pages(rows, 2), torch.tensor([[0], [-1]], dtype=torch.int32), torch.tensor([1, 1]).int())
    q = torch.zeros(2, 24, 512).bfloat16()
    pool, slots, lengths = _one_pool(AttendCall("decode", q, torch.zeros(24), 1.0, window, entries))
    assert (slots.tolist(), lengths.tolist(), len(pool)) == ([1, 3, 4, 0], [3, 1], 8)
