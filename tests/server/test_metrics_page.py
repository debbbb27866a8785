"""The writer of the metrics page against the client library's reader."""

from __future__ import annotations

import asyncio
import math

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from epp.server.metrics_page import page
from tools.gen_metrics_docs import example


def read(text: bytes) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    """Families by name with their samples, creation times left out."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        if not family.name.endswith("_created"):
            found[f"{family.type} {family.name} {family.documentation}"] = [
                (sample.name, sample.labels, sample.value)
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
    return found


async def test_it_says_what_the_client_library_says() -> None:
    registry = example().registry
    text = await page(registry)
    assert read(text) == read(generate_latest(registry))
    assert b"_created" not in text


async def test_names_and_numbers_of_every_kind_come_through() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("g", "help with \\ and\na line", ["text"], registry=registry)
    values = {'"': 1.5, "\\": math.inf, "\n": -math.inf, "ünï": 1e-300, "": 2**60, " ": 0, "a,b={}": -1}
    for text, value in values.items():
        gauge.labels(text).set(value)
    Counter("c", "text", registry=registry).inc()
    families = read(await page(registry))
    assert families == read(generate_latest(registry))
    (samples,) = [samples for name, samples in families.items() if name.startswith("gauge g ")]
    assert {labels["text"]: value for _, labels, value in samples} == values


async def test_it_lets_others_in_while_it_writes() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    await page(example().registry)
    task.cancel()
    assert turns > 40
