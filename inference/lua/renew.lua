-- ARGV: ttl, id, ticket, lease_ms
-- Returns {held, stop}. A lease stands until someone lapses it: clocks alone take nothing away.
local id, ticket, lease_ms = ARGV[2], ARGV[3], tonumber(ARGV[4])
local g = fetch(id)
local stop = g and g.stop == '1' and 1 or 0
if not holds(g, ticket) or g.state ~= 'leased' then return {0, stop} end
redis.call('ZADD', LEASES, whole(now_ms() + lease_ms), id)
redis.call('PEXPIRE', LEASES, TTL)
keep(g)
keep_room(g.model)
return {1, stop}
