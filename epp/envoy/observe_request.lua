-- Asks for an uncompressed answer on paths whose answers carry a usage, so that it can be read.
function envoy_on_request(handle)
  local headers = handle:headers()
  local path = (headers:get(":path") or ""):match("^[^?]*")
  if STRIPPED_PATHS[path] then
    headers:remove("accept-encoding")
  end
end
