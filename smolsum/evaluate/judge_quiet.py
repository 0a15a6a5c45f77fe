"""DeepEval's settings, made before it is imported: it sends nothing home, and reads no .env and no key file."""

from __future__ import annotations

import os

for _name in ("DEEPEVAL_TELEMETRY_OPT_OUT", "DEEPEVAL_DISABLE_DOTENV", "DEEPEVAL_DISABLE_LEGACY_KEYFILE"):
    os.environ[_name] = "1"
