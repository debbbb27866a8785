"""What is rendered for each gateway is what the gateway writes, field by field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from epp.envoy.settings import EnvoySettings, TlsFiles
from tests.gateways import shapes
from tests.gateways.rig import GATEWAYS

LISTINGS = yaml.safe_load(Path(__file__).with_name("listings.yaml").read_text())
PARTS = [(name, part) for name in GATEWAYS for part in LISTINGS.get(name, ())]
#: Fields of clusters that say where things are in a test.
PLACES = {"name", "load_assignment", "eds_cluster_config"}


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_shape_is_as_its_gateway_writes_it(name: str, part: str) -> None:
    settings = EnvoySettings(endpoints=(), eds_path="/eds.json", picker_tls=TlsFiles())
    message = shapes.tree(getattr(GATEWAYS[name].shape(settings), part))
    assert {key: value for key, value in message.items() if key not in PLACES} == LISTINGS[name][part]


def test_the_docs_cure_is_the_one_that_is_tried() -> None:
    page = (Path(__file__).parents[2] / "docs/llm-d.md").read_text()
    (cure,) = re.findall(r"```yaml\n(early_header.*?)```", page, re.DOTALL)
    assert yaml.safe_load(cure) == {
        "early_header_mutation_extensions": [shapes.tree(shapes.without_destination())]
    }
