-- Puts what stands before an engine's paths before the request's own. Runs for each attempt, once its host is chosen:
-- attempts share their headers, so the first keeps what the client sent.
function envoy_on_request(handle)
  local headers, kept = handle:headers(), handle:streamInfo():dynamicMetadata()
  if not kept:get("epp.place") then
    kept:set("epp.place", "path", headers:get(":path"))
    kept:set("epp.place", "host", headers:get(":authority"))
  end
  local own = kept:get("epp.place")
  headers:replace(":path", (headers:get("x-epp-path") or "") .. own.path)
  headers:replace(":authority", headers:get("x-epp-host") or own.host)
  headers:remove("x-epp-path")
  headers:remove("x-epp-host")
end
