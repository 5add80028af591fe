-- How much may be inside a group at once. Where a table has a bound, Envoy runs this for every
-- request to learn its cluster; `documents` puts three values in front: `most`, the cluster that serves
-- (`served`), and those of the group (`clusters`). What a flip left in the other side is inside too,
-- and so is what waits for a connection. No cluster is named "full": Envoy counts the requests sent
-- there, and the listener tells them to try again.

function envoy_on_route(handle)
  local inside = 0
  for _, name in ipairs(clusters) do
    local cluster = handle:getCluster(name)
    if cluster then
      inside = inside + cluster:numRequests() + cluster:numPendingRequests()
    end
  end
  return inside < most and served or "full"
end
