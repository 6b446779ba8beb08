"""A server that ends while it is asked is noticed at once, whoever still holds its socket."""

from __future__ import annotations

import threading
import time

import pytest

from conformance.e2e import watched as subject
from conformance.e2e.watched import watched
from conformance.errors import StackTimeout


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(subject, "_LOOK", 0.01)
    monkeypatch.setattr(subject, "_GRACE", 0.05)


def test_silence_of_a_server_that_has_ended_is_not_waited_for():
    release, started = threading.Event(), time.monotonic()
    with pytest.raises(StackTimeout, match="no answer, 0 s after the first request"):
        watched(lambda: release.wait(60), lambda: -11)
    assert time.monotonic() - started < 5
    release.set()


def test_what_it_said_before_it_ended_counts():
    assert watched(lambda: time.sleep(0.03) or "all", lambda: 0) == "all"


def test_a_slow_server_is_waited_for():
    assert watched(lambda: time.sleep(0.2) or "all", lambda: None) == "all"


def test_what_asking_raises_is_raised():
    with pytest.raises(LookupError, match="mine"):
        watched(lambda: {}["mine"], lambda: None)
