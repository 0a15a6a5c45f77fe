"""Makes the scripts importable: tests ask the generator of the built-in data for texts. Sets MLX up as the package
does, before any test imports it: else a run in this process would round otherwise than one in a process of its own.
Examples of property-based tests have no deadline: what else the machine does is nobody's fault.
"""

from __future__ import annotations

from hypothesis import settings

import smolsum.policy  # noqa: F401

settings.register_profile("smolsum", deadline=None)
settings.load_profile("smolsum")
