-- ARGV: ttl, id, request ('' = only if it is known), mark, model, user, conversation, priority, estimate
-- Returns 1 when it joined the waiting room, 0 when it is waiting, leased or finished already, or not known.
local id, request = ARGV[2], ARGV[3]
local now = now_ms()
local g = fetch(id)
if not g then
  if request == '' then return 0 end
  redis.call('HSET', generation_key(id), 'mark', ARGV[4], 'state', 'idle', 'request', request, 'model', ARGV[5],
    'user', ARGV[6], 'conversation', ARGV[7], 'priority', ARGV[8], 'estimate', ARGV[9], 'entered', whole(now))
  g = fetch(id)
end
if g.state == 'finished' or g.state == 'waiting' then return 0 end
if g.state == 'leased' then
  if lease_end(g) > now then return 0 end
  lapse(g)
end
join(g, now, false)
keep(g)
return 1
