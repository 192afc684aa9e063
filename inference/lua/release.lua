-- ARGV: ttl, id, ticket
-- Returns 1 when it waits again, at the front; the attempt does not count as lost.
local id, ticket = ARGV[2], ARGV[3]
local g = fetch(id)
if not holds(g, ticket) then return 0 end
leave(g)
drop_lease(g)
refund(g)
set(g, {ticket = ''})
join(g, now_ms(), true)
keep(g)
return 1
