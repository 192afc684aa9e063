-- ARGV: ttl, id
-- Deletes everything that is kept of one generation, wherever it stands. Returns 1 when there was anything. A worker
-- that has it hears so at once, rather than with its next write, which is refused.
local id = ARGV[2]
local g = fetch(id)
if not g then return redis.call('DEL', log_key(id)) end
if g.state == 'leased' then redis.call('PUBLISH', P .. 'stops', id) end
leave(g)
drop_lease(g)
if g.conversation ~= '' then redis.call('DEL', prefix_key(g.model, g.conversation)) end
redis.call('DEL', generation_key(id), log_key(id))
return 1
