-- ARGV: ttl, id, is_forced, ticket ('' = whoever holds it)
-- Returns 1 when the lease was taken away, 0 when there is none, it has not expired, or another holds it.
local id, is_forced, ticket = ARGV[2], ARGV[3] == '1', ARGV[4]
local g = fetch(id)
if not g or g.state ~= 'leased' then
  redis.call('ZREM', LEASES, id)
  return 0
end
if ticket ~= '' and not holds(g, ticket) then return 0 end
if not is_forced and lease_end(g) > now_ms() then return 0 end
lapse(g)
keep(g)
return 1
