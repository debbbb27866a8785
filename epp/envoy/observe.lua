-- Watches the answers of requests that the picker decided, without holding or changing a byte of them.
--
-- Into dynamic metadata, namespace NAMESPACE, from where the access log carries it to the picker:
--   first_us   Unix time of the first body chunk, microseconds
--   streamed   whether the answer is an event stream
--   encoding   content-encoding, when there is one: then nothing can be read of the answer
--   chunks     body chunks up to the end of the answer; there once the answer is complete
--   usage      text of the last "usage" object in the last TAIL_BYTES of the complete answer
--
-- An event stream is complete with its end mark: many clients hang up there, before the connection says so.
--
-- An event stream's first chunk is also told to the picker at once, by a call that nobody waits for.
--
-- Work per chunk is one string of at most TAIL_BYTES, whatever came before. A handle's objects die when the
-- script yields, so streamInfo() is asked for afresh each time. NAMESPACE, DECISION_NAMESPACE, CLUSTER (empty
-- for no call), TIMEOUT_MS, TAIL_BYTES and STRIPPED_PATHS are set above.

local END_MARK = "[DONE]\n\n"

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

local function tell_first_token(handle, id)
  handle:httpCall(
    CLUSTER,
    { [":method"] = "POST", [":path"] = "/first-token/" .. id, [":authority"] = "picker" },
    "",
    { ["asynchronous"] = true, ["timeout_ms"] = TIMEOUT_MS, ["send_xff"] = false }
  )
end

-- In generated text the quotes of "usage" are escaped, so the name followed by an object is the real one.
local function usage_in(tail)
  local from = tail:match('.*()"usage"%s*:%s*{')
  return from and tail:match('^"usage"%s*:%s*(%b{})', from)
end

local function note_complete(handle, chunks, tail)
  note(handle, "chunks", chunks)
  local usage = usage_in(tail)
  if usage then
    note(handle, "usage", ascii(usage, TAIL_BYTES))
  end
end

-- The chunks of one answer. `readable` is false where no usage can be found.
local function watch(handle, id, streamed, readable)
  local pieces, first, last, held, chunks, seen = {}, 1, 0, 0, 0, false
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    if length > 0 then
      local kept = length > TAIL_BYTES and TAIL_BYTES or length
      local piece = chunk:getBytes(length - kept, kept)
      chunks = chunks + 1
      -- A comment of an event stream keeps the connection alive and is no token.
      if not seen and not (streamed and chunk:getBytes(0, 1) == ":") then
        seen = true
        note(handle, "first_us", tonumber(handle:timestampString(EnvoyTimestampResolution.MICROSECOND)))
        if streamed and CLUSTER ~= "" then
          local sent, why = pcall(tell_first_token, handle, id)
          if not sent then
            handle:logErr(tostring(why))
          end
        end
        if not readable then
          return
        end
      end
      last = last + 1
      pieces[last] = piece
      held = held + kept
      while held - #pieces[first] >= TAIL_BYTES do
        held = held - #pieces[first]
        pieces[first] = nil
        first = first + 1
      end
      if streamed and piece:byte(-3) == 93 and piece:sub(-#END_MARK) == END_MARK then
        break
      end
    end
  end
  note_complete(handle, chunks, table.concat(pieces, "", first, last):sub(-TAIL_BYTES))
end

function envoy_on_response(handle)
  local id = decision_id(handle)
  local headers = handle:headers()
  if not id or (headers:get(":status") or ""):sub(1, 1) ~= "2" then
    return
  end
  local kind = (headers:get("content-type") or ""):lower()
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
