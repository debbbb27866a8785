"""What a changed configuration says when regions are peers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

from epp.server.reload import Reload
from tests.envoy.test_regions_render import CONFIG

if TYPE_CHECKING:
    import pytest

ALONE = "policy: {name: random}\n"
RULES = "regions: [{allow: [us], path_prefix: /us/}]\n"


def test_a_picker_tells_that_envoys_do_not_follow_its_rules(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for text, told in ((ALONE, False), (CONFIG, True)):
        reload = Reload(*[MagicMock()] * 5)
        reload.config = first = reload.parse(text.encode())
        reload.apply(first)
        reload.apply(reload.parse((text + RULES).encode()))
        assert reload.config.regions
        assert ("render this region's Envoy" in caplog.text) == told
