"""The far end of a worker's channel: sent as source, runs in the stack's own interpreter. Stdlib only.

First message: `{"package": name, "modules": {module: source}, "entry": module}`. The modules are installed in
memory as one package; the entry module's `CALLS` maps call names to functions. Then, call by call,
`(id, name, arguments)` is answered by `(id, "ok", result)` or `(id, kind, message)`, the message in one line.
An exception's `kind` names the harness's exception for it; without one it is our adapter's own error.
"""

import faulthandler
import importlib
import importlib.abc
import importlib.util
import linecache
import os
import sys
import traceback


class _Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports `package` and `package.module` from strings; tracebacks show their lines."""

    def __init__(self, package, modules):
        self.sources = {package: "", **{f"{package}.{name}": text for name, text in modules.items()}}
        self.package = package

    def filename(self, name):
        return f"<{name.replace('.', '/')}.py>"

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self.sources:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=fullname == self.package)

    def exec_module(self, module):
        name = module.__name__
        text, where = self.sources[name], self.filename(name)
        linecache.cache[where] = (len(text), None, text.splitlines(keepends=True), where)
        exec(compile(text, where, "exec"), module.__dict__)


def one_line(error, package):
    """`Type: message (package/module.py:line)`: the innermost line of our own driving code."""
    ours = f"<{package}"
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if frame.filename.startswith(ours)] or frames
    where = f" ({mine[-1].filename.strip('<>')}:{mine[-1].lineno})" if mine else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


#: Exceptions of the driving code that the harness has one of its own for.
KINDS = ("StackMissing", "NotSupported", "StackRefused", "AdapterError")


def answer(call, package, identifier, name, arguments):
    """What one call comes to, as the tuple to send."""
    try:
        return identifier, "ok", call(**arguments)
    except (Exception, SystemExit) as error:
        kind = getattr(error, "kind", None)
        if kind not in KINDS:
            kind = None
        sys.stderr.write(f"--- {name} raised\n{traceback.format_exc()}")
        sys.stderr.flush()
        message = " ".join(str(error).split()) if kind else one_line(error, package)
        return identifier, kind or "AdapterError", message


def serve(channel):
    os.dup2(2, 1)  # execnet has kept the pipe for itself; whatever prints from here on goes to the log
    faulthandler.enable(file=sys.stderr)
    channel.send({"pid": os.getpid(), "python": sys.version.split()[0], "executable": sys.executable})
    first = channel.receive()
    package = first["package"]
    sys.meta_path.insert(0, _Sources(package, first["modules"]))
    calls = importlib.import_module(f"{package}.{first['entry']}").CALLS
    channel.send("ready")
    while True:
        try:
            identifier, name, arguments = channel.receive()
        except EOFError:
            return
        reply = answer(calls[name], package, identifier, name, arguments)
        try:
            channel.send(reply)
        except OSError:
            return
        except Exception as error:  # execnet's DumpError: the result is no simple type
            channel.send((identifier, "AdapterError", f"{name} returned what cannot be sent: {error}"))


if __name__ == "__channelexec__":
    serve(channel)  # type: ignore[name-defined]  # noqa: F821
