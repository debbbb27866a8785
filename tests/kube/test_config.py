from __future__ import annotations

import pytest

from epp.config.kubernetes import check_selector
from epp.config.load import parse_config
from epp.errors import ConfigError


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{}", "set exactly one of pool_name, selector and service"),
        ("{selector: app=llm}", "selector needs target_ports, e.g. [8000]"),
        ("{selector: 'app in', target_ports: [1]}", "'app in' is not a requirement of a label selector"),
        ("{pool_name: a, target_ports: [8000]}", "come from the InferencePool"),
        ("{service: a, target_ports: [8000, 8000]}", "names a port twice"),
        ("{poolname: a}", "did you mean 'pool_name'?"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_to_write(section: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f"pool: {{kubernetes: {section}}}", "epp.yaml")
    assert words in str(caught.value)
    assert str(caught.value).startswith("epp.yaml: pool.kubernetes")


@pytest.mark.parametrize(
    "selector",
    [
        "app=llm",
        "app notin (a,b),x/y=z",
        "example.com/app=x,!c",
    ],
)
def test_selectors_of_the_api_are_taken(selector: str) -> None:
    check_selector(selector)


@pytest.mark.parametrize("selector", ["", "app llm", "app in a", "app=x,"])
def test_other_texts_are_refused(selector: str) -> None:
    with pytest.raises(ValueError, match="label selector"):
        check_selector(selector)
