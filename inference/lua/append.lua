-- ARGV: ttl, id, ticket, event, seq (0 = whatever comes next), max_bytes
-- Returns {seq (0 = refused), stop, is_full}. With a seq of its own an entry that is there already is not written again.
local id, ticket, event = ARGV[2], ARGV[3], ARGV[4]
local wanted, max_bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local g = fetch(id)
if not holds(g, ticket) then return {0, g and g.stop == '1' and 1 or 0, 0} end
local stop = g.stop == '1' and 1 or 0
if wanted > 0 and wanted <= g.seq then return {wanted, stop, 0} end
if wanted > g.seq + 1 then return redis.error_reply('HOLE entry ' .. wanted .. ' after ' .. g.seq .. ' of ' .. id) end
if g.bytes + #event > max_bytes then return {0, stop, 1} end
local seq = write(g, event)
keep(g)
return {seq, stop, 0}
