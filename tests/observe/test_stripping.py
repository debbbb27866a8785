"""Of which requests `strip_accept_encoding` takes the header away: the script on LuaJIT, as Envoy runs it."""

from __future__ import annotations

import pytest
from lupa import luajit21  # type: ignore[import-untyped]  # it has no stubs

from epp.apis.registry import PARSERS, find_parser
from epp.envoy.examples import ENDPOINTS
from epp.envoy.observe import STRIPPED_PATHS, script
from epp.envoy.settings import EnvoySettings

HARNESS = """
function(path)
  local headers, handle = { [":path"] = path, ["accept-encoding"] = "gzip" }, {}
  function handle:headers()
    return {
      get = function(_, name) return headers[name] end,
      remove = function(_, name) headers[name] = nil end,
    }
  end
  envoy_on_request(handle)
  return headers["accept-encoding"] == nil
end
"""


@pytest.fixture(scope="module")
def lua() -> luajit21.LuaRuntime:
    made = luajit21.LuaRuntime()
    made.execute(script(EnvoySettings(endpoints=ENDPOINTS, strip_accept_encoding=True)))
    return made.eval(HARNESS)


def test_all_paths_whose_answers_tell_a_usage() -> None:
    read = {path for parser in PARSERS for path in parser.paths}
    assert read - set(STRIPPED_PATHS) == {"/v1/messages/count_tokens"}, "which counts, and answers nothing"
    assert set(STRIPPED_PATHS) <= read
    assert len(set(STRIPPED_PATHS)) == len(STRIPPED_PATHS)


@pytest.mark.parametrize("before", ["", "/tenant", "/a/b", "/v1"])
def test_where_the_picker_reads_answers_they_are_not_compressed(
    lua: luajit21.LuaRuntime, before: str
) -> None:
    for path in (*STRIPPED_PATHS, "/v1/other", "/health", "/v1", "/", ""):
        for end in ("", "?stream=1", "/", "//?x=/v1/other"):
            whole = before + path + end
            assert lua(whole) is (find_parser("POST", whole, {}) is not None), whole
