"""What a worker has done, as Prometheus reads it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smolsum.worker.service import Service


@dataclass
class Tally:
    """Counts since the start."""

    rollouts: int = 0
    failed: int = 0
    tokens: int = 0
    syncs: Counter[str] = field(default_factory=Counter)
    sync_bytes: int = 0
    sync_seconds: float = 0.0

    def synced(self, kind: str, size: int, seconds: float) -> None:
        """Note that weights were taken: a patch or an anchor of so many bytes, from its arrival to its being served."""
        self.syncs[kind] += 1
        self.sync_bytes += size
        self.sync_seconds += seconds


def exposition(service: Service) -> str:
    """The counts and gauges of a worker in Prometheus' text format, version 0.0.4."""
    tally, engine, gate = service.tally, service.engine, service.gate
    series: list[tuple[str, str, str, list[tuple[str, float]]]] = [
        ("rollouts_total", "counter", "rollouts sampled", [("", tally.rollouts)]),
        ("rollout_errors_total", "counter", "rollouts that came back as errors", [("", tally.failed)]),
        ("tokens_total", "counter", "tokens sampled", [("", tally.tokens)]),
        (
            "weight_updates_total",
            "counter",
            "weights taken",
            [(f'{{kind="{kind}"}}', tally.syncs[kind]) for kind in ("patch", "anchor")],
        ),
        ("weight_bytes_total", "counter", "bytes of weights received", [("", tally.sync_bytes)]),
        ("weight_seconds_total", "counter", "seconds from arrival to being served", [("", tally.sync_seconds)]),
        ("engine_restarts_total", "counter", "times that the engine died and came back", [("", engine.restarts)]),
        ("engine_ready", "gauge", "1 while the engine can sample", [("", int(engine.state == "ready"))]),
        ("policy_version", "gauge", "version that is served", [("", service.version)]),
        ("running", "gauge", "rollouts being sampled", [("", gate.inside)]),
        ("waiting", "gauge", "rollouts that wait", [("", gate.waiting)]),
    ]
    lines = []
    for name, kind, text, values in series:
        lines += [f"# HELP smolsum_worker_{name} {text}", f"# TYPE smolsum_worker_{name} {kind}"]
        lines += [f"smolsum_worker_{name}{labels} {value}" for labels, value in values]
    return "\n".join(lines) + "\n"
