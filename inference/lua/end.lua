-- ARGV: ttl, id, event of the finish, cost (tokens; -1 = not known)
-- Returns 1 when it ended now, 0 when it is finished already or not known.
local id, event, cost = ARGV[2], ARGV[3], tonumber(ARGV[4])
local g = fetch(id)
if not g or g.state == 'finished' then return 0 end
conclude(g, event, cost)
return 1
