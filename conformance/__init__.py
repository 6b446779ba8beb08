"""Hardware validation and conformance for LLM inference stacks at awkward tensor-parallel sizes.

Importing this package draws in neither torch nor any stack.
"""

from __future__ import annotations

import sys
from pathlib import Path

__version__ = "0.1.0"

_PACKAGE = Path(__file__).resolve().parent
#: Where `suites`, `references` and `hardware_profiles` live: the clone, or the wheel's own tree.
TREE = _PACKAGE / "_tree" if (_PACKAGE / "_tree").is_dir() else _PACKAGE.parent

if str(TREE) not in sys.path:
    sys.path.append(str(TREE))
