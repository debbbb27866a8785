"""The filter that puts the public model name back into answers of engines that have their own name for it.

Owns the filter and its parameter; `restore_model.lua` has its rules. It stands before the observing filter,
which so sees an answer as the engine gave it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from epp.envoy import messages as api
from epp.envoy.filters import DECISION_NAMESPACE

if TYPE_CHECKING:
    from epp.envoy.settings import EnvoySettings

_SCRIPT = Path(__file__).parent / "restore_model.lua"


def restorers(settings: EnvoySettings) -> list[api.hcm.HttpFilter]:
    """The filter, where the settings ask for it."""
    if not settings.restores_models:
        return []
    source = f'local DECISION_NAMESPACE = "{DECISION_NAMESPACE}"\n\n{_SCRIPT.read_text()}'
    config = api.lua.Lua(
        default_source_code=api.core.DataSource(inline_string=source), stat_prefix="restore_model"
    )
    return [api.hcm.HttpFilter(name="epp.restore_model", typed_config=api.pack(config))]
