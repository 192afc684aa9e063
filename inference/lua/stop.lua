-- ARGV: ttl, id, event of the finish
-- Returns 'unknown', 'finished', 'ended' (it waited) or 'flagged' (a worker is told, or the sweeper ends it).
local id, event = ARGV[2], ARGV[3]
local g = fetch(id)
if not g then return 'unknown' end
if g.state == 'finished' then return 'finished' end
if g.state == 'waiting' then
  conclude(g, event, -1)
  return 'ended'
end
set(g, {stop = '1'})
redis.call('PUBLISH', P .. 'stops', id)
return 'flagged'
