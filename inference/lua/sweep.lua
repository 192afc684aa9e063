-- ARGV: ttl, id, stop_requested, event of a stopped finish, event of a failed finish, max_attempts, ring_after_ms, bells
-- The Redis half of the sweeper for one active row, in one step. Returns {verdict, model}. `bells` is
-- how the lists of doorbells begin, before the model's name: nobody rings while there are as many as there are waiting,
-- so bells never pile up.
local id, stop_requested = ARGV[2], ARGV[3] == '1'
local stopped, failed, max_attempts, ring_after = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local g = fetch(id)
if not g then return {'unknown', ''} end
if g.state == 'finished' then return {'finished', g.model} end
local now = now_ms()
keep(g)
keep_room(g.model)
if g.state == 'leased' then
  if lease_end(g) > now then
    if not stop_requested or g.stop == '1' then return {'running', g.model} end
    set(g, {stop = '1'})
    redis.call('PUBLISH', P .. 'stops', id)
    return {'nudged', g.model}
  end
  lapse(g)
end
if stop_requested or g.stop == '1' then
  conclude(g, stopped, -1)
  return {'ended', g.model}
end
if g.state == 'idle' then
  if g.lost >= max_attempts then
    conclude(g, failed, -1)
    return {'ended', g.model}
  end
  join(g, now, false)
  return {'entered', g.model}
end
local order = room_key(g.model, 'order')
if not redis.call('ZSCORE', order, id) then join(g, now, false) end
redis.call('PEXPIRE', queue_key(g.model, g.user), TTL)
if now - g.rang < ring_after or redis.call('LLEN', ARGV[8] .. g.model) >= redis.call('ZCARD', order) then
  return {'waiting', g.model}
end
set(g, {rang = now})
return {'rang', g.model}
