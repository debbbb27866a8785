-- Watches the answers of requests that the picker decided, without holding or changing a byte of them.
--
-- Into dynamic metadata, namespace NAMESPACE, from where the access log carries it to the picker:
--   first_us   Unix time of the first content, microseconds: of the first event of a stream that holds what was
--              generated, as EVENTS and CONTENT say, and of any other answer of its first chunk
--   streamed   whether the answer is an event stream
--   encoding   content-encoding, when there is one: then nothing can be read of the answer
--   chunks     body chunks up to the end of the answer; there once the answer is complete
--   usage      what the engine says the answer cost, as it stood in the answer, names included: the first
--              and the last "usage" object with counts of an event stream (Anthropic tells the prompt's tokens
--              in the first event and the answer's in the last), the last one of any other answer, the last
--              "meta_info" object of each prompt of a batch (SGLang), and the "timings" of each (llama.cpp)
--   failure    what may say that the request failed, for the picker to judge: the data of the last event that
--              FAILURES fit, the beginning of any other such answer, and of one of status 400 to 499
--   model      that the answer names
--   response_id  under which the engine stores the response (OpenAI responses)
--
-- An event stream is complete with the event that ends it: many clients hang up there, before the connection
-- says so. An event stream's first content, the id of a response, and a failure that tells of the engine are also
-- told to the picker at once, by calls that nobody waits for: the next turn may come before the log does, and an
-- engine that fails in no time looks idle meanwhile.
--
-- What is found does not depend on how the answer was cut. Kept of it are these objects, each of at most
-- TAIL_BYTES, its first LINE_BYTES up to the first content, and the end of a chunk in which something has begun
-- that its successor may finish; that is nothing where a chunk ends with its line. A handle's objects die when
-- the script yields, so streamInfo() is asked for afresh each time. NAMESPACE, DECISION_NAMESPACE, CLUSTER (empty
-- for no call), GRPC_PATH (where CLUSTER speaks gRPC), TIMEOUT_MS, TAIL_BYTES, STRIPPED_PATHS, and LINE_BYTES,
-- EVENTS, CONTENT, DELTAS, PROGRESS and FAILURES (as in epp/apis/events.py), LB_NAMESPACE and SERVED_KEY (where
-- Envoy says who served) are set above.

local QUOTE, BACKSLASH, OPEN, COLON, NEWLINE = 34, 92, 123, 58, 10
-- No name that is looked for is longer, quotes and key included.
local NAME_BYTES = 32
-- Both are at the beginning of an answer.
local RESPONSE_ID, MODEL = '"id"%s*:%s*"(resp_[%w_-]+)"', '"model"%s*:%s*"([^"\\]+)"'
-- What tells the usage, by API: OpenAI and Anthropic, SGLang, llama.cpp.
local USAGE, META, TIMED = 'usage"', 'meta_info"', 'tokens_cached"'
-- Prompts of one batch whose counts are told apart; of a larger one nothing is told.
local MAX_BATCH = 16
-- What an object that tells the usage counts; one without is of a client's, a tool's parameter of that name.
local COUNTS = {
  prompt_tokens = true, completion_tokens = true, total_tokens = true, input_tokens = true, output_tokens = true,
  cached_tokens = true, cache_read_input_tokens = true, cache_creation_input_tokens = true,
}
local TIMINGS = '^"tokens_cached"%s*:%s*%d+%s*,%s*"timings"%s*:%s*%b{}'

-- Of what a failure says so much is told at once.
local TOLD_BYTES = 512

local function note(handle, key, value)
  handle:streamInfo():dynamicMetadata():set(NAMESPACE, key, value)
end

-- Only ext_proc writes this namespace; a client's header cannot.
local function decision_id(handle)
  local ours = handle:streamInfo():dynamicMetadata():get(DECISION_NAMESPACE)
  return ours and ours["decision_id"]
end

-- Metadata has to be UTF-8, so only printable ASCII leaves here.
local function ascii(text, limit)
  return (text:sub(1, limit):gsub("[^\32-\126]", " "))
end

local function tell(handle, path)
  if CLUSTER == "" then
    return
  end
  local headers, body = { [":method"] = "POST", [":path"] = path, [":authority"] = "picker" }, ""
  if GRPC_PATH ~= "" then
    headers[":path"], headers["content-type"], headers["te"] = GRPC_PATH, "application/grpc", "trailers"
    body = string.char(0, 0, 0, math.floor(#path / 256), #path % 256) .. path
  end
  local sent, why = pcall(
    handle.httpCall,
    handle,
    CLUSTER,
    headers,
    body,
    { ["asynchronous"] = true, ["timeout_ms"] = TIMEOUT_MS, ["send_xff"] = false }
  )
  if not sent then
    handle:logErr(tostring(why))
  end
end

local function tell_failure(handle, id, status, data)
  local lb = handle:streamInfo():dynamicMetadata():get(LB_NAMESPACE)
  local escaped = data:sub(1, TOLD_BYTES):gsub("%W", function(char)
    return string.format("%%%02x", char:byte())
  end)
  tell(handle, "/failed/" .. id .. "/" .. (lb and lb[SERVED_KEY] or "") .. "/" .. status .. "/" .. escaped)
end

-- Where the object that opens at `from` closes, nil if not in this text, or farther away than is kept: names within
-- names that nobody closes would be walked to the end of the text for each of them.
local function closing(text, from)
  local depth, last = 0, from + TAIL_BYTES
  while true do
    local at = text:find('["{}]', from)
    if not at or at > last then
      return nil
    end
    local byte = text:byte(at)
    from = at + 1
    if byte == QUOTE then
      repeat
        local inner = text:find('["\\]', from)
        if not inner or inner > last then
          return nil
        end
        from = inner + (text:byte(inner) == BACKSLASH and 2 or 1)
      until text:byte(inner) == QUOTE
    else
      depth = depth + (byte == OPEN and 1 or -1)
      if depth == 0 then
        return at
      end
    end
  end
end

local function past_space(text, at)
  local byte = text:byte(at)
  while byte == 32 or byte == NEWLINE or byte == 13 or byte == 9 do
    at = at + 1
    byte = text:byte(at)
  end
  return at, byte
end

-- The object after a name that ends before `from`: where it opens and closes. Opens nowhere when something
-- else follows, and then whether that is because the text ends; closes nowhere when that has not come yet.
local function object(text, from)
  local at, byte = past_space(text, from)
  if byte == COLON then
    at, byte = past_space(text, at + 1)
    if byte == OPEN then
      return at, closing(text, at)
    end
  end
  return nil, nil, byte == nil
end

local function fits(data)
  if not (data:find("error", 1, true) or data:find("abort", 1, true) or data:find(".failed", 1, true)) then
    return false
  end
  for _, pattern in ipairs(FAILURES) do
    if data:find(pattern) then
      return true
    end
  end
  return false
end

-- What an event is, as epp.apis.events.kind_of has it.
local function kind_of(name, data)
  name = data:match('^%s*{%s*"type"%s*:%s*"([%w_.]+)"') or name
  for _, event in ipairs(EVENTS) do
    local begins, ends, kind = event[1], event[2], event[3]
    if name:sub(1, #begins) == begins and name:sub(#name - #ends + 1) == ends then
      if kind == "call" then
        local named = data:find('"name"%s*:%s*"[^"]') or data:find('"data"%s*:%s*"[^"]')
        return named and "content" or "structure"
      end
      for _, member in ipairs(kind == "content" and DELTAS or {}) do
        if data:find('"' .. member .. '"%s*:%s*""') then
          return "structure"
        end
      end
      return kind
    end
  end
  if fits(data) then
    return "error"
  elseif data:find(PROGRESS, 1, true) then
    return "progress"
  end
  local shaped = data:find('"choices"', 1, true) or data:find("^%s*null") or data:find("^%s*%[DONE%]")
  for _, member in ipairs(CONTENT) do
    for value in data:gmatch('"' .. member .. '"%s*:%s*(["%[{]?%s*["%]}]?)') do
      if value ~= "" and value ~= '""' and not value:find("^[%[{]%s*[%]}]$") then
        return "content"
      end
      shaped = true
    end
  end
  return shaped and "structure" or "content"
end

-- What has been found of one answer.
local Found = {}
Found.__index = Found

local function new_found(streamed)
  return setmetatable({
    streamed = streamed, carry = "", line = "", event = "", name = streamed and USAGE,
    batch = {}, prompts = 0, over = false,
  }, Found)
end

local function counts(text)
  for name in text:gmatch('"([%l_]+_tokens)"%s*:%s*%d') do
    if COUNTS[name] then
      return true
    end
  end
  return false
end

function Found:add(prompt, text)
  if not self.batch[prompt] then
    self.prompts = self.prompts + 1
  end
  if self.batch[prompt] or self.prompts <= MAX_BATCH then
    self.batch[prompt] = text
  end
end

function Found:take(name, text)
  local told = '"' .. name .. ":" .. text
  if name == META then
    self:add(text:match('"id"%s*:%s*"([^"]*)"') or "", told)
    if text:find('"abort"', 1, true) then
      self.failure = "{" .. told .. "}"
    end
  elseif counts(text) then
    self.last = told
    if self.streamed and not self.first then
      self.first = self.last
    end
  end
end

-- In generated text quotes are escaped, so a name in plain quotes followed by an object is the real one.
-- Where something begins that is not over yet.
function Found:search(text, name)
  local from = 1
  while true do
    local at, ends = text:find(name, from, true)
    if not at then
      return nil
    end
    from = ends + 1
    if text:byte(at - 1) ~= QUOTE then
      -- a text that ends like a name
    elseif name == TIMED then
      local timings = text:match(TIMINGS, at - 1)
      if timings then
        self:add(timings, timings)
      elseif #text - at < TAIL_BYTES then
        return at - 1
      end
    else
      local opens, closes, may_follow = object(text, from)
      local length = (closes or #text) - at + 2
      if closes and length <= TAIL_BYTES then
        self:take(name, text:sub(opens, closes))
        from = closes + 1
      elseif not closes and (opens or may_follow) and length < TAIL_BYTES then
        return at - 1
      end
    end
  end
end

-- The next lines of a stream, up to the first content, and which model they name. True where that has come.
function Found:begins(piece)
  local text, from = self.line .. piece, 1
  while true do
    local newline = text:find("\n", from, true)
    if not newline then
      self.line = text:sub(from, from + LINE_BYTES)
      return false
    end
    local line = text:sub(from, math.min(newline - 1, from + LINE_BYTES))
    from = newline + 1
    local data, name = line:match("^data:(.*)"), line:match("^event: ?([%w_.]+)")
    if data then
      self.model = self.model or data:match(MODEL)
      if data:find('"meta_info"', 1, true) then
        self.name = META
      elseif data:find('"tokens_evaluated"', 1, true) then
        self.name = TIMED
      end
      self.named = self.named or self.event ~= "" or data:find('^%s*{%s*"type"') ~= nil
      if kind_of(self.event, data) == "content" then
        return true
      end
    elseif name or not line:find("^:") then
      self.event = name or ""
    end
  end
end

-- The data of the last event that may be a failure, or of a whole answer how it ended. A word in what was generated costs a look at its line.
function Found:look_for_failure(text)
  if not (text:find("error", 1, true) or text:find("abort", 1, true)) then
    return
  elseif self.is_message then
    return
  elseif not self.streamed then
    for reason in text:gmatch('"finish_reason"%s*:%s*"(%l+)"') do
      if reason == "abort" or reason == "error" then
        self.failure = '{"finish_reason":"' .. reason .. '"}'
      end
    end
    return
  end
  for line in text:gmatch("[^\n]+") do
    local data = line:match("^data:(.*)") or ""
    if fits(data) or line:find("^event: ?error") then
      self.failure = (data ~= "" and data or line):sub(1, LINE_BYTES)
    end
  end
end

-- The next chunk. True when the event has come that ends the stream, and is whole.
function Found:feed(piece)
  local text = self.carry == "" and piece or self.carry .. piece
  local from, line, ended = nil, nil, false
  self:look_for_failure(text)
  if not self.streamed then
    for _, name in ipairs({ USAGE, META, TIMED }) do
      local unfinished = self:search(text, name)
      from = unfinished and math.min(from or unfinished, unfinished) or from
    end
  else
    from = self:search(text, self.name)
    self:look_for_end(text)
    line = text:byte(-1) ~= NEWLINE and (text:match("^.*\n()") or 1)
    ended = self.over and text:byte(-1) == NEWLINE and text:find("\r?\n\r?\n$") ~= nil
  end
  if from or text:byte(-1) ~= NEWLINE then
    if line and #text - line < TAIL_BYTES then
      from = math.min(from or line, line)
    end
    self.carry = text:sub(math.min(from or #text, math.max(#text - NAME_BYTES + 1, 1)))
  else
    self.carry = self.over and text:sub(-NAME_BYTES) or ""
  end
  return ended
end

-- OpenAI's mark, or an event that the table has as the last.
function Found:look_for_end(text)
  if self.over then
    return
  end
  if text:find("[DONE]", 1, true) then
    self.over = text:find("^data: ?%[DONE%]") ~= nil or text:find("\ndata: ?%[DONE%]") ~= nil
  end
  if self.named and (self.failure or text:find("message_stop", 1, true) or text:find("response.", 1, true)) then
    for _, last in ipairs(LAST_EVENTS) do
      if text:find(last, 1, true) and text:find('"type"%s*:%s*"' .. last) then
        self.over = true
      end
    end
  end
end

-- All that was found, nil for nothing.
function Found:usage()
  local parts = { self.first }
  if self.last ~= self.first then
    parts[#parts + 1] = self.last
  end
  if self.prompts <= MAX_BATCH then
    for _, text in pairs(self.batch) do
      parts[#parts + 1] = text
    end
  end
  local text = table.concat(parts)
  return text ~= "" and text or nil
end

local function first_seen(handle, id, streamed)
  note(handle, "first_us", tonumber(handle:timestampString(EnvoyTimestampResolution.MICROSECOND)))
  if streamed then
    tell(handle, "/first-token/" .. id)
  end
end

-- The chunks of one answer. `readable` is false where nothing can be found in it.
local function watch(handle, id, streamed, readable)
  local found, chunks, head, open, stored, failure = new_found(streamed), 0, "", true, nil, nil
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    if length > 0 then
      chunks = chunks + 1
      if not readable then
        first_seen(handle, id, streamed)
        return
      end
      local piece = chunk:getBytes(0, length)
      if open then
        head = (head .. piece):sub(1, LINE_BYTES)
        local response = not stored and head:match(RESPONSE_ID)
        if response then
          stored = true
          note(handle, "response_id", response)
          tell(handle, "/stored/" .. id .. "/" .. response)
        end
        local first = chunks == 1
        if streamed then
          first = found:begins(piece)
        else -- one of Anthropic's has no finish reason, but objects that a model gives to tools
          found.is_message = head:find('"type"%s*:%s*"message"') ~= nil
        end
        if first then
          first_seen(handle, id, streamed)
        end
        open = not streamed and #head < LINE_BYTES or streamed and not first
      end
      local ended = found:feed(piece)
      if found.failure ~= failure then
        failure = found.failure
        note(handle, "failure", ascii(failure, LINE_BYTES))
        tell_failure(handle, id, 200, failure)
      end
      if ended then
        break
      end
    end
  end
  note(handle, "chunks", chunks)
  local usage, model = found:usage(), found.model
  if not streamed then -- in the outermost object
    model = (head:match("^%s*%[?{(.*)") or ""):gsub("%b{}", ""):match(MODEL)
  end
  if usage then
    note(handle, "usage", ascii(usage, #usage))
  end
  if model then
    note(handle, "model", ascii(model, NAME_BYTES * 8))
  end
  if not streamed and not failure and fits(head) then
    note(handle, "failure", ascii(head, LINE_BYTES))
    tell_failure(handle, id, 200, head)
  end
end

-- Nothing is held: a body is looked at as it passes, and no more of it than is noted.
local function note_failure(handle)
  local head = ""
  for chunk in handle:bodyChunks() do
    head = head .. chunk:getBytes(0, math.min(chunk:length(), LINE_BYTES - #head))
    if #head == LINE_BYTES then
      break
    end
  end
  note(handle, "failure", ascii(head, LINE_BYTES))
end

function envoy_on_response(handle)
  local id = decision_id(handle)
  local headers = handle:headers()
  local status = headers:get(":status") or ""
  local class = status:sub(1, 1)
  local kind = (headers:get("content-type") or ""):lower()
  -- Envoy says 503 itself where a connection broke, which is no refusal; its log tells the two apart.
  if id and (class == "5" and status ~= "503" or status == "404") then
    tell_failure(handle, id, status, "")
  end
  if id and class == "4" and kind:find("json", 1, true) then
    note_failure(handle)
  end
  if not id or class ~= "2" then
    return
  end
  local streamed = kind:find("text/event-stream", 1, true) == 1
  local readable = streamed or kind:find("json", 1, true) ~= nil
  note(handle, "streamed", streamed)
  local encoding = headers:get("content-encoding")
  if encoding and encoding ~= "" and encoding:lower() ~= "identity" then
    note(handle, "encoding", ascii(encoding, 64))
    readable = false
  end
  watch(handle, id, streamed, readable)
end
