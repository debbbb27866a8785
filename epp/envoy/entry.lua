-- Orders the regions that a request may go to by their distance from the user. REGIONS (name, address and, where
-- known, latitude and longitude), RULES (header and value, path, regions allowed) and the names are set above.

local RADIANS = math.pi / 180

-- Half the chord between two places on the unit sphere, squared (haversine): grows with the distance.
local function apart(lat, lon, region)
  local up, along = math.sin((region.lat - lat) / 2 * RADIANS), math.sin((region.lon - lon) / 2 * RADIANS)
  return up * up + math.cos(lat * RADIANS) * math.cos(region.lat * RADIANS) * along * along
end

-- The place that a header names; nothing where it names none on earth.
local function place(text)
  local lat, lon = (text or ""):match("^%s*(-?[%d.]+)%s*,%s*(-?[%d.]+)%s*$")
  lat, lon = tonumber(lat), tonumber(lon)
  if lat and lon and math.abs(lat) <= 90 and math.abs(lon) <= 180 then
    return lat, lon
  end
end

local function is_allowed(region, headers, path)
  for _, rule in ipairs(RULES) do
    local binds = (not rule.header or headers:get(rule.header) == rule.value) and path:sub(1, #rule.path) == rule.path
    if binds and not rule.allow[region.name] then
      return false
    end
  end
  return true
end

function envoy_on_request(handle)
  local headers, metadata = handle:headers(), handle:streamInfo():dynamicMetadata()
  local lat, lon = place(headers:get(COORDINATES_HEADER))
  headers:remove(COORDINATES_HEADER)
  local names, near, distance = {}, {}, {}
  for _, region in ipairs(REGIONS) do
    if is_allowed(region, headers, headers:get(":path") or "") then
      names[#names + 1] = region.name
      if lat and region.lat then
        near[#near + 1] = region.address
        distance[region.address] = apart(lat, lon, region)
      end
    end
  end
  metadata:set(FORWARD_NAMESPACE, FORWARD_HEADER, table.concat(names, ","))
  if #near > 0 then
    table.sort(near, function(one, other) return distance[one] < distance[other] end)
    metadata:set(DESTINATION_NAMESPACE, DESTINATION_KEY, table.concat(near, ","))
  end
end
