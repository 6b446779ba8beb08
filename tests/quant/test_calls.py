"""Calls of quantisers and their GEMMs on GPUs that are not here: written down, spoilt, and bound where a library is."""

from __future__ import annotations

import pytest

from conformance.errors import NotSupported
from conformance.faults import quant_calls as faults
from conformance.stacks.quant_calls_protocol import QuantCallRequest
from conformance.stacks.reference_quant_calls import calls
from suites.quant.test_call import wrong

CAPABILITIES = ((10, 0), (10, 3), (12, 0), (12, 1))
FAULTS = [name for name, value in vars(faults).items() if isinstance(value, faults.QuantCallFault)]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_written_down_calls_are_right(capability):
    request = QuantCallRequest(capability)
    assert not wrong(calls(request), request)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_seen(capability, name):
    request = QuantCallRequest(capability)
    assert wrong(getattr(faults, name).planted(calls)(request), request)


def test_another_capability_is_not_supported():
    with pytest.raises(NotSupported, match=r"capability 9\.0"):
        calls(QuantCallRequest((9, 0)))


def test_nothing_told_is_not_right():
    findings = wrong({}, QuantCallRequest((12, 0)))
    assert [one.where for one in findings] == ["calls of kind linear", "calls of kind grouped"]


def test_calls_of_another_capability_are_not_due():
    told = calls(QuantCallRequest((10, 0)))
    assert any("batched groups" in one.where for one in wrong(told, QuantCallRequest((12, 0))))


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_flashinfer_binds(capability):
    pytest.importorskip("flashinfer", reason="FlashInfer is not installed beside this harness")
    from conformance.stacks.flashinfer.quantised import calls as bound

    request = QuantCallRequest(capability)
    assert not wrong(bound(request), request)
