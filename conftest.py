"""Activates the plugin; everything else is in `conformance/pytest_plugin/`."""

pytest_plugins = ["conformance.pytest_plugin"]
