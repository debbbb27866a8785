-- Puts the public model name back into the answers of requests whose model the picker has rewritten; looks at
-- no other answer. Places, rules and machine are those of epp/apis/rewrite.py, one for one.
--
-- A request was rewritten when the decision's metadata (DECISION_NAMESPACE, set above) carries "model_public".
-- Of a compressed answer nothing can be read: it passes. The answer's length changes, so content-length goes.

local OUTSIDE, TEXT, NAME, NAMED, VALUED, MODEL, PASSED = 0, 1, 2, 3, 4, 5, 6
local LINE_FEED, QUOTE, BACKSLASH, COLON, OPEN_LIST, OPEN_OBJECT = 10, 34, 92, 58, 91, 123
local SPACE = { [9] = true, [13] = true, [32] = true }
local HOLDERS = { message = true, response = true }
local LONGEST_NAME = 8
local LINES = { "text/event-stream", "ndjson", "jsonl" }

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\" }

-- What stands between the quotes of a JSON string.
local function quoted(text)
  return (text:gsub('[%c"\\]', function(char)
    return ESCAPES[char] or string.format("\\u%04x", char:byte())
  end))
end

local function begin(self)
  self.phase, self.depth, self.name = OUTSIDE, 0, ""
  self.top, self.inner, self.escaped = false, false, false
end

local function new_restorer(model, events)
  local self = { model = quoted(model), events = events }
  self.tokens = events and '["{}%[%]\n]' or '["{}%[%]]'
  self.text = events and '["\\\n]' or '["\\]'
  begin(self)
  return self
end

-- Each of these takes up one token and returns the position behind it.

local function outside(self, data, at)
  local found = data:find(self.tokens, at)
  if not found then
    return #data + 1
  end
  local token = data:byte(found)
  if token == QUOTE then
    local wanted = (self.depth == 1 and self.top) or (self.depth == 2 and self.inner)
    self.phase, self.name = wanted and NAME or TEXT, ""
  elseif token == LINE_FEED then
    begin(self)
  elseif token == OPEN_OBJECT or token == OPEN_LIST then
    self.depth = self.depth + 1
    if self.depth == 1 then
      self.top = token == OPEN_OBJECT
    end
  else
    self.depth = self.depth - 1
    self.inner = self.inner and self.depth > 1
  end
  return found + 1
end

local function inside(self, data, at)
  if self.escaped then
    self.escaped = false
    return at + 1
  end
  local found = data:find(self.text, at)
  local stop = found or #data + 1
  if self.phase == NAME then
    self.name = self.name .. data:sub(at, math.min(stop - 1, at + LONGEST_NAME))
    if #self.name > LONGEST_NAME then
      self.phase = TEXT
    end
  end
  if not found then
    return stop
  end
  local token = data:byte(found)
  if token == BACKSLASH then
    self.escaped = true
    if self.phase == NAME then
      self.phase = TEXT
    end
  elseif token == LINE_FEED then
    begin(self)
  elseif self.phase == MODEL then
    self.phase = PASSED
  elseif self.phase == NAME and (self.name == "model" or (self.depth == 1 and HOLDERS[self.name])) then
    self.phase = NAMED
  else
    self.phase = OUTSIDE
  end
  return found + 1
end

local function between(self, data, at)
  local byte = data:byte(at)
  if SPACE[byte] or (byte == LINE_FEED and not self.events) then
    return at + 1
  end
  if self.phase == NAMED and byte == COLON then
    self.phase = VALUED
    return at + 1
  end
  local model = self.name == "model"
  if self.phase == VALUED and model and byte == QUOTE then
    self.phase = MODEL
    return at + 1
  end
  if self.phase == VALUED and not model and byte == OPEN_OBJECT then
    self.inner = true
  end
  self.phase = OUTSIDE
  return at
end

-- The next piece as the client gets it; nil for one that stays as it is.
local function feed(self, data)
  local out, kept, at = nil, 1, 1
  while at <= #data do
    local phase = self.phase
    if phase == PASSED then
      local line_feed = self.events and data:find("\n", at, true)
      if not line_feed then
        break
      end
      at = line_feed + 1
      begin(self)
    elseif phase == OUTSIDE then
      at = outside(self, data, at)
    elseif phase == NAMED or phase == VALUED then
      at = between(self, data, at)
      if self.phase == MODEL then
        out = (out or "") .. data:sub(kept, at - 1) .. self.model
        kept = at
      end
    else
      at = inside(self, data, at)
      if phase == MODEL then
        out = out or ""
        kept = self.phase == MODEL and at or at - 1
      end
    end
  end
  return out and out .. data:sub(kept)
end

-- Whether documents are lines, nil where nothing can be read of the answer.
local function framing(headers)
  local encoding = (headers:get("content-encoding") or ""):lower()
  if encoding ~= "" and encoding ~= "identity" then
    return nil
  end
  local kind = (headers:get("content-type") or ""):lower()
  for _, name in ipairs(LINES) do
    if kind:find(name, 1, true) then
      return true
    end
  end
  if kind:find("json", 1, true) then
    return false
  end
  return nil
end

function envoy_on_response(handle)
  -- Only ext_proc writes this namespace; a client's header cannot.
  local ours = handle:streamInfo():dynamicMetadata():get(DECISION_NAMESPACE)
  local headers, model = handle:headers(), ours and ours["model_public"]
  local refused = ours and ours["put_back"] and headers:get("x-epp-refused")
  if refused then -- a redirect that could not be followed (`put_back.lua`): the client gets the refusal
    headers:replace(":status", refused:match("^%S+ %S+ (%d%d%d)") or "503")
    headers:remove("x-epp-refused")
    headers:remove("location")
  end
  if not model then
    return
  end
  local events = framing(headers)
  if events == nil then
    return
  end
  headers:remove("content-length")
  local restorer = new_restorer(model, events)
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    if length > 0 then
      local changed = feed(restorer, chunk:getBytes(0, length))
      if changed then
        chunk:setBytes(changed)
      end
    end
    if not events and restorer.phase == PASSED then
      return
    end
  end
end
