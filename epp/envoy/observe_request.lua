-- Asks for an uncompressed answer on paths whose answers carry a usage, so that it can be read.

-- As the picker matches: one with a version may stand behind a gateway's prefix, a bare one is the whole path.
local function is_read(path)
  for _, known in ipairs(STRIPPED_PATHS) do
    if path == known or (known:find("/", 2, true) and path:sub(-#known) == known) then
      return true
    end
  end
  return false
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local path = (headers:get(":path") or ""):match("^[^?]*"):gsub("/+$", "")
  if is_read(path) then
    headers:remove("accept-encoding")
  end
end
