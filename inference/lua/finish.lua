-- ARGV: ttl, id, ticket, event of the last text ('' = none), event of the finish, cost (tokens; -1 = not known)
-- Returns {seq of the finish (0 = refused), stop}.
local id, ticket, last, event, cost = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local g = fetch(id)
local stop = g and g.stop == '1' and 1 or 0
if not holds(g, ticket) then return {0, stop} end
if last ~= '' then write(g, last) end
local facts = room_key(g.model, 'facts')
local served_ms = now_ms() - g.claimed
local mean = redis.call('HGET', facts, 'service_ms')
if mean then served_ms = tonumber(mean) + MEAN_WEIGHT * (served_ms - tonumber(mean)) end
redis.call('HSET', facts, 'service_ms', whole(served_ms))
return {conclude(g, event, cost), stop}
