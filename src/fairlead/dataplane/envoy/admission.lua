-- Admission of one group. Envoy runs this for every request of a route that has a bucket or no
-- backend to send to, or serves without an agent; other routes skip it. The numbers come with the route, so a flip changes them
-- together with the table; the bucket stays, because it belongs to the listener. Every worker thread
-- has a bucket of its own: each holds its share.

local tokens, filled_ms
-- Without an agent: the bound in force, of which table, since when, and how many succeeded since.
local inside_max, of_epoch, since_ms, done

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

-- How much may be inside without an agent: what the table left for that case, a step more or less
-- every period, by how many succeeded (fairlead.core.traffic.alone).
local function relax(now_ms, bound)
  if of_epoch ~= bound.epoch then
    inside_max, of_epoch, since_ms, done = bound.inside_max, bound.epoch, now_ms, 0
  end
  local past_ms = now_ms - since_ms
  if past_ms < 0 then
    since_ms = now_ms
  elseif past_ms >= bound.every_ms then
    local enough = done * bound.stay_ms >= inside_max * past_ms
    inside_max = inside_max + (enough and bound.step or -bound.step)
    inside_max = math.max(bound.inside_max, math.min(bound.most, inside_max))
    since_ms, done = now_ms, 0
  end
  return inside_max
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
  elseif admission:get("bound") then
    -- `inside.lua` has chosen by what the client may have sent: it is asked again.
    local bound = admission:get("bound")
    handle:headers():replace(bound.header, string.format("%d", relax(handle:timestamp(), bound)))
    handle:clearRouteCache()
  end
end

-- A request that found the group full (`inside.lua`) was not admitted: the token goes back. The same
-- holds for a backend that answers with our own header: it is an admission control as well.
function envoy_on_response(handle)
  local refused = handle:headers():get("fairlead-refused")
  if done and not refused and tonumber(handle:headers():get(":status")) < 500 then
    done = done + 1
  end
  if refused and not handle:streamInfo():dynamicMetadata():get("fairlead") then
    tokens = tokens and tokens + 1
  end
end
