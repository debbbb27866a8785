-- Turns an engine's refusal into a redirect to the same place, which the route follows: the picker then sees the request
-- again. It allows that in the decision's metadata, which only ext_proc writes: a secret, by which it knows the header
-- that comes of this, when the request came, and where to. Statuses are those of epp/config/retries.py, and all failures
-- where several endpoints had a part in the answer.
local REFUSALS = { ["429"] = true, ["503"] = true, ["529"] = true }

function envoy_on_response(handle)
  local ours = handle:streamInfo():dynamicMetadata():get("epp")
  local known, location = ((ours and ours["put_back"]) or ""):match("^(%S+ %S+) (.+)$")
  local headers = handle:headers()
  local status = headers:get(":status")
  if location and (REFUSALS[status] or (ours["parted"] and status:sub(1, 1) == "5")) then
    headers:replace("x-epp-refused", known .. " " .. status .. " " .. (headers:get("retry-after") or ""))
    headers:replace(":status", "308")
    headers:replace("location", location)
  end
end
