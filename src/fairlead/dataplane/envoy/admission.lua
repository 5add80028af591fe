-- Admission of one group. Envoy runs this for every request of a route that has a bucket or no
-- backend to send to; other routes skip it. The numbers come with the route, so a flip changes them
-- together with the table; the bucket stays, because it belongs to the listener. Every worker thread
-- has a bucket of its own: each holds its share.

local tokens, filled_ms

-- Refill, cap, test, subtract. Starts full; time that runs backwards refills nothing.
local function take(now_ms, rate_per_s, burst)
  tokens = tokens or burst
  local past_ms = math.max(0, now_ms - (filled_ms or now_ms))
  tokens, filled_ms = math.min(burst, tokens + past_ms / 1000 * rate_per_s), now_ms
  if tokens < 1 then
    return false
  end
  tokens = tokens - 1
  return true
end

local function refuse(handle, how)
  handle:streamInfo():dynamicMetadata():set("fairlead", "refused", how)
  handle:clearRouteCache()
end

function envoy_on_request(handle)
  local admission = handle:metadata()
  local mode = admission:get("mode")
  if mode == nil then
    return
  end
  if mode ~= "normal" and not take(handle:timestamp(), admission:get("rate"), admission:get("burst")) then
    refuse(handle, mode)
  elseif admission:get("no_backend") then
    refuse(handle, "hard")
  end
end

-- A request that found the group full (`inside.lua`) was not admitted: the token goes back. The same
-- holds for a backend that answers with our own header: it is an admission control as well.
function envoy_on_response(handle)
  local refused = handle:headers():get("fairlead-refused")
  if refused and not handle:streamInfo():dynamicMetadata():get("fairlead") then
    tokens = tokens and tokens + 1
  end
end
