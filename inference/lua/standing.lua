-- ARGV: ttl, id
-- Returns {state, position, num_waiting, waited_ms, worker, lost, stop, recorded, service_ms (-1 = none
-- yet), slots of the model's live workers, free ones of them}.
-- The position is exact while turns cost what they are estimated to cost, and among the users looked at.
local MAX_USERS = 64
local MAX_WORKERS = 256
local id = ARGV[2]
local g = fetch(id)
if not g then return {'unknown'} end
local now = now_ms()
local state = g.state
if state == 'idle' or (state == 'leased' and lease_end(g) <= now) then state = 'lapsed' end
local service_ms = tonumber(redis.call('HGET', room_key(g.model, 'facts'), 'service_ms') or -1)
local order, users = room_key(g.model, 'order'), room_key(g.model, 'users')
local num_waiting = redis.call('ZCARD', order)
local position = 0

local function rank_of_first(user)
  return tonumber(redis.call('ZRANGE', queue_key(g.model, user), 0, 0, 'WITHSCORES')[2] or 0)
end

-- Requests of `user` that go before one of ours whose turn begins at `start`. Among equals, whose first request is older.
local function turns_before(user, counter, start, cost)
  if counter > start then return 0 end
  local num_turns = math.ceil((start - counter) / cost)
  if counter + num_turns * cost == start and rank_of_first(user) < rank_of_first(g.user) then num_turns = num_turns + 1 end
  return math.min(num_turns, redis.call('ZCARD', queue_key(g.model, user)))
end

if state == 'waiting' then
  local cost = math.max(MIN_CHARGE, g.estimate)
  local index = redis.call('ZRANK', queue_key(g.model, g.user), id)
  if index then
    local rank = tonumber(redis.call('ZSCORE', queue_key(g.model, g.user), id))
    local own = tonumber(redis.call('ZSCORE', users, g.user) or 0)
    local start = own + index * cost
    position = index + 1
    if rank >= 0 then
      local others = redis.call('ZRANGE', users, 0, MAX_USERS - 1, 'WITHSCORES')
      for i = 1, #others, 2 do
        local user, counter = others[i], tonumber(others[i + 1])
        if user ~= g.user then position = position + turns_before(user, counter, start, cost) end
      end
      local num_unseen = redis.call('ZCOUNT', users, '-inf', '(' .. whole(start)) - MAX_USERS
      if num_unseen > 0 then position = position + num_unseen end
    end
  else
    local num_later = redis.call('ZCARD', room_key(g.model, 'later'))
    position = num_waiting - num_later + (redis.call('ZRANK', room_key(g.model, 'later'), id) or 0) + 1
  end
  position = math.max(1, math.min(position, num_waiting))
end

local num_slots, num_free = 0, 0
if state == 'waiting' then
  for _, name in ipairs(redis.call('ZRANGE', P .. 'workers', 0, MAX_WORKERS - 1)) do
    local data = redis.call('GET', P .. 'worker:' .. name)
    local is_read, card = pcall(cjson.decode, data or 'null')
    if data and is_read and card.state == 'ready' and card.model.name == g.model then
      num_slots, num_free = num_slots + card.num_slots, num_free + card.num_free_slots
    end
  end
end

return {state, position, num_waiting, state == 'waiting' and now - g.waiting or 0, g.worker, g.lost,
  g.stop == '1' and 1 or 0, g.recorded == '1' and 1 or 0, service_ms, num_slots, num_free}
