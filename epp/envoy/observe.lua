-- Watches the answers of requests that the picker decided, without holding or changing a byte of them.
--
-- Into dynamic metadata, namespace NAMESPACE, from where the access log carries it to the picker:
--   first_us   Unix time of the first body chunk, microseconds
--   streamed   whether the answer is an event stream
--   encoding   content-encoding, when there is one: then nothing can be read of the answer
--   chunks     body chunks up to the end of the answer; there once the answer is complete
--   usage      what the engine says the answer cost, as it stood in the answer, names included: the first
--              and the last "usage" object with counts of an event stream (Anthropic tells the prompt's tokens
--              in the first event and the answer's in the last), the last one of any other answer, and the
--              last "meta_info" object of each prompt of a batch (SGLang)
--   failure    of an answer of status 400 or more, its first FAILURE_BYTES
--   response_id  under which the engine stores the response (OpenAI responses)
--
-- An event stream is complete with the event that ends it: many clients hang up there, before the connection
-- says so. An event stream's first chunk, and the id of a response, are also told to the picker at once, by calls that
-- nobody waits for: the next turn may come before the log does.
--
-- What is found does not depend on how the answer was cut. Kept of it are these objects, each of at most
-- TAIL_BYTES, and the end of a chunk in which something has begun that its successor may finish; that is
-- nothing where a chunk ends with its line. A handle's objects die when the script yields, so streamInfo() is
-- asked for afresh each time. NAMESPACE, DECISION_NAMESPACE, CLUSTER (empty for no call), TIMEOUT_MS,
-- TAIL_BYTES, FAILURE_BYTES and STRIPPED_PATHS are set above.

local QUOTE, BACKSLASH, OPEN, COLON, NEWLINE = 34, 92, 123, 58, 10
-- No name that is looked for is longer, quotes and key included.
local NAME_BYTES = 32
-- The id of a response comes within so many bytes of an answer.
local RESPONSE_ID, HEAD_BYTES = '"id"%s*:%s*"(resp_[%w_-]+)"', 1024
-- Prompts of one batch whose counts are told apart; of a larger one nothing is told.
local MAX_BATCH = 16
-- What an object that tells the usage counts; one without is of a client's, a tool's parameter of that name.
local COUNTS = {
  prompt_tokens = true, completion_tokens = true, total_tokens = true, input_tokens = true, output_tokens = true,
  cached_tokens = true, cache_read_input_tokens = true, cache_creation_input_tokens = true,
}
local LAST_RESPONSES = { 'response.completed"', 'response.incomplete"', 'response.failed"' }

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
  local sent, why = pcall(
    handle.httpCall,
    handle,
    CLUSTER,
    { [":method"] = "POST", [":path"] = path, [":authority"] = "picker" },
    "",
    { ["asynchronous"] = true, ["timeout_ms"] = TIMEOUT_MS, ["send_xff"] = false }
  )
  if not sent then
    handle:logErr(tostring(why))
  end
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

-- What has been found of one answer.
local Found = {}
Found.__index = Found

local function new_found(streamed)
  return setmetatable({ streamed = streamed, carry = "", batch = {}, prompts = 0, over = false }, Found)
end

local function counts(text)
  for name in text:gmatch('"([%l_]+_tokens)"%s*:%s*%d') do
    if COUNTS[name] then
      return true
    end
  end
  return false
end

function Found:take(name, text)
  if name == '"usage"' then
    if not counts(text) then
      return
    end
    self.last = name .. ":" .. text
    if self.streamed and not self.first then
      self.first = self.last
    end
    return
  end
  local prompt = text:match('"id"%s*:%s*"([^"]*)"') or ""
  if not self.batch[prompt] then
    self.prompts = self.prompts + 1
  end
  if self.batch[prompt] or self.prompts <= MAX_BATCH then
    self.batch[prompt] = name .. ":" .. text
  end
end

-- In generated text quotes are escaped, so a name in plain quotes followed by an object is the real one.
function Found:search(text, name, bare)
  local from, unfinished = 1, nil
  while true do
    local at, ends = text:find(bare, from, true)
    if not at then
      return unfinished
    end
    from = ends + 1
    if text:byte(at - 1) == QUOTE then
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

-- The next chunk. True when the event has come that ends the stream, and is whole.
function Found:feed(piece)
  local text = self.carry == "" and piece or self.carry .. piece
  local usage = self:search(text, '"usage"', 'usage"')
  local meta = self:search(text, '"meta_info"', 'meta_info"')
  local keep = usage and meta and math.min(usage, meta) or usage or meta
  local ended = false
  if self.streamed then
    self:look_for_end(text)
    ended = self.over and text:byte(-1) == NEWLINE and text:find("\r?\n\r?\n$") ~= nil
  end
  if keep then
    self.carry = text:sub(keep)
  elseif text:byte(-1) == NEWLINE and not self.over then
    self.carry = ""
  else
    self.carry = text:sub(-NAME_BYTES)
  end
  return ended
end

-- OpenAI's mark, the last event of Anthropic's messages, and those of OpenAI's responses.
function Found:look_for_end(text)
  if self.over then
    return
  end
  if text:find("[DONE]", 1, true) and (text:find("^data: ?%[DONE%]") or text:find("\ndata: ?%[DONE%]")) then
    self.over = true
  elseif text:find('message_stop"', 1, true) then
    self.over = text:find('"type"%s*:%s*"message_stop"') ~= nil
  elseif text:find("response.", 1, true) then
    for _, name in ipairs(LAST_RESPONSES) do
      if text:find(name, 1, true) and text:find('"type"%s*:%s*"' .. name) then
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

-- Whether there is more than comments in an event stream so far; they keep the connection alive and are no
-- token. `comment` says whether the last chunk ended within one, and is told for this one.
local function is_token(piece, comment)
  local from = 1
  while true do
    if comment then
      local newline = piece:find("\n", from, true)
      if not newline then
        return false, true
      end
      from = newline + 1
    end
    from = piece:find("[^\r\n]", from)
    if not from then
      return false, false
    end
    comment = piece:byte(from) == COLON
    if not comment then
      return true, false
    end
  end
end

local function first_seen(handle, id, streamed)
  note(handle, "first_us", tonumber(handle:timestampString(EnvoyTimestampResolution.MICROSECOND)))
  if streamed then
    tell(handle, "/first-token/" .. id)
  end
end

-- The chunks of one answer. `readable` is false where no usage can be found.
local function watch(handle, id, streamed, readable)
  local found, chunks, seen, comment, head = new_found(streamed), 0, false, false, ""
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    if length > 0 then
      chunks = chunks + 1
      if not readable then
        first_seen(handle, id, streamed)
        return
      end
      local piece = chunk:getBytes(0, length)
      if not seen then
        seen = true
        if streamed then
          seen, comment = is_token(piece, comment)
        end
        if seen then
          first_seen(handle, id, streamed)
        end
      end
      if head then
        head = (head .. piece):sub(1, HEAD_BYTES)
        local response = head:match(RESPONSE_ID)
        if response then
          note(handle, "response_id", response)
          tell(handle, "/stored/" .. id .. "/" .. response)
        end
        head = not response and #head < HEAD_BYTES and head
      end
      if found:feed(piece) then
        break
      end
    end
  end
  note(handle, "chunks", chunks)
  local usage = found:usage()
  if usage then
    note(handle, "usage", ascii(usage, #usage))
  end
end

-- Nothing is held: a body is looked at as it passes, and no more of it than is noted.
local function note_failure(handle)
  local head = ""
  for chunk in handle:bodyChunks() do
    head = head .. chunk:getBytes(0, math.min(chunk:length(), FAILURE_BYTES - #head))
    if #head == FAILURE_BYTES then
      break
    end
  end
  note(handle, "failure", ascii(head, FAILURE_BYTES))
end

function envoy_on_response(handle)
  local id = decision_id(handle)
  local headers = handle:headers()
  local class = (headers:get(":status") or ""):sub(1, 1)
  local kind = (headers:get("content-type") or ""):lower()
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
