-- ARGV: ttl of an ended log, id
-- Returns 1 when `recorded` was written now. From here the log only has to outlive its viewers' reconnects.
local id = ARGV[2]
local g = fetch(id)
if not g or g.state ~= 'finished' or g.recorded == '1' then return 0 end
write(g, '{"kind":"recorded"}')
set(g, {recorded = '1', request = ''})
keep(g)
return 1
