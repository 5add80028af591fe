-- How much may be inside a group at once. Where a table has a bound, Envoy runs this for every
-- request to learn its cluster; `documents` puts values in front: `most`, the cluster that serves
-- (`served`), those of the group (`clusters`), and the name of the header in which `admission.lua`
-- says how far it has relaxed the bound (`relaxed`, without an agent only). What a flip left in the other side is inside too,
-- and so is what waits for a connection. No cluster is named "full": Envoy counts the requests sent
-- there, and the listener tells them to try again.

function envoy_on_route(handle)
  local inside, bound = 0, relaxed and tonumber(handle:headers():get(relaxed)) or most
  for _, name in ipairs(clusters) do
    local cluster = handle:getCluster(name)
    if cluster then
      inside = inside + cluster:numRequests() + cluster:numPendingRequests()
    end
  end
  return inside < bound and served or "full"
end
