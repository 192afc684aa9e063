-- What every script shares: names of keys, one generation's fields, the log's one way of writing, the room's counters.
-- It is put in front of each script's text. KEYS[1] is the prefix of all keys (one hash tag, so a script may touch any
-- of them); ARGV[1] is how long, in ms, an untouched generation is kept. Times are Redis's own, in ms.
--
-- A generation is `idle` (neither waiting nor leased: its lease lapsed), `waiting`, `leased` or `finished`. The ticket is
-- a thing apart: it outlives a lapse until the next claim replaces it or `end`, `release` or `finish` voids it.

local P = KEYS[1]
local TTL = ARGV[1]

local MIN_CHARGE = 256 -- tokens that a turn costs at least, so that every turn moves its user behind those who wait
local DEBT_CAP = 128 -- tokens that a user who comes back with nothing running is behind a newcomer, at most
local CLOCK_STEP = 16 -- the room's clock gains this with every claim, so that no debt outlasts an endless row of newcomers
local AGE_STEP = 30000 -- ms of waiting that make up for one level of priority
local FRONT = 1e14 -- ms by which a released generation is put before all others
local MEAN_WEIGHT = 0.2 -- of the newest answer in the mean of service times

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

local function generation_key(id) return P .. 'gen:' .. id end
local function log_key(id) return P .. 'log:' .. id end
local function room_key(model, part) return P .. 'room:' .. model .. ':' .. part end
local function queue_key(model, user) return room_key(model, 'queue:' .. user) end
local function prefix_key(model, conversation) return P .. 'prefix:' .. model .. ':' .. conversation end
local LEASES = P .. 'leases'

local TEXTS = {'mark', 'state', 'model', 'user', 'conversation', 'ticket', 'worker', 'stop', 'recorded'}
local NUMBERS = {'seq', 'bytes', 'lost', 'priority', 'estimate', 'charge', 'entered', 'waiting', 'claimed', 'rang'}

-- The generation as a table, or nil when Redis knows nothing of it.
local function fetch(id)
  local key = generation_key(id)
  local texts = redis.call('HMGET', key, unpack(TEXTS))
  if not texts[1] then return nil end
  local g = {id = id}
  for i, name in ipairs(TEXTS) do g[name] = texts[i] or '' end
  local numbers = redis.call('HMGET', key, unpack(NUMBERS))
  for i, name in ipairs(NUMBERS) do g[name] = tonumber(numbers[i] or 0) end
  return g
end

-- Sets fields both here and in Redis; a value of '' removes the field.
local function set(g, fields)
  local pairs_to_set = {}
  for name, value in pairs(fields) do
    g[name] = value
    if value == '' then
      redis.call('HDEL', generation_key(g.id), name)
    else
      table.insert(pairs_to_set, name)
      table.insert(pairs_to_set, type(value) == 'number' and whole(value) or value)
    end
  end
  if #pairs_to_set > 0 then redis.call('HSET', generation_key(g.id), unpack(pairs_to_set)) end
end

-- Whoever shows the ticket may write; a finished generation has none.
local function holds(g, ticket)
  return g ~= nil and g.state ~= 'finished' and g.ticket ~= '' and g.ticket == ticket
end

local function keep(g)
  redis.call('PEXPIRE', generation_key(g.id), TTL)
  redis.call('PEXPIRE', log_key(g.id), TTL)
end

local function keep_room(model)
  for _, part in ipairs({'order', 'later', 'users', 'served', 'running', 'facts'}) do
    redis.call('PEXPIRE', room_key(model, part), TTL)
  end
end

-- The next entry of the log, and the same as news. `event` is a JSON object that has no seq of its own.
local function write(g, event)
  local seq = g.seq + 1
  redis.call('XADD', log_key(g.id), seq .. '-0', 'event', event)
  set(g, {seq = seq, bytes = g.bytes + #event})
  redis.call('PUBLISH', P .. 'news:' .. g.id, g.mark .. ' {"seq":' .. seq .. ',' .. string.sub(event, 2))
  return seq
end

-- Fairness. A user's counter is the tokens served to them, kept in `users` while they have an urgent request waiting,
-- else in `served`, where it is dropped once the clock has passed it. The clock is where the last served turn began.

local function clock(model)
  return tonumber(redis.call('HGET', room_key(model, 'facts'), 'clock') or 0)
end

-- Where a user stands who has nothing waiting: never before the clock (being away earns nothing), and after a full
-- stop only a little behind it (else one long answer of theirs would let another's hundred requests go first).
local function returning_counter(model, user)
  local start = clock(model)
  local counter = math.max(start, tonumber(redis.call('ZSCORE', room_key(model, 'served'), user) or 0))
  if not redis.call('HGET', room_key(model, 'running'), user) then counter = math.min(counter, start + DEBT_CAP) end
  return counter
end

-- Corrects a user's counter by what a turn really cost. What is given back never puts them before a user who waits:
-- many turns given back at once would be many turns in a row.
local function adjust(model, user, tokens)
  if tokens == 0 then return end
  local key = room_key(model, 'users')
  local counter = redis.call('ZSCORE', key, user)
  if not counter then
    key = room_key(model, 'served')
    counter = redis.call('ZSCORE', key, user) or clock(model)
  end
  counter = tonumber(counter)
  local corrected = counter + tokens
  if tokens < 0 then corrected = math.max(corrected, math.min(counter, clock(model) + MIN_CHARGE)) end
  redis.call('ZADD', key, whole(corrected), user)
end

-- Puts a generation whose time has come among its user's urgent ones.
local function seat(g, rank)
  local users = room_key(g.model, 'users')
  if not redis.call('ZSCORE', users, g.user) then
    redis.call('ZADD', users, whole(returning_counter(g.model, g.user)), g.user)
    redis.call('ZREM', room_key(g.model, 'served'), g.user)
  end
  redis.call('ZADD', queue_key(g.model, g.user), whole(rank), g.id)
  redis.call('PEXPIRE', queue_key(g.model, g.user), TTL)
end

-- Into the waiting room. Within a user the rank is the time of the first entering plus what a low priority costs; a
-- rank that lies in the future is a request that is not urgent yet.
local function join(g, now, is_front)
  local shift = is_front and FRONT or 0
  local rank = g.entered + g.priority * AGE_STEP - shift
  set(g, {state = 'waiting', waiting = now, rang = now})
  redis.call('ZADD', room_key(g.model, 'order'), whole(now - shift), g.id)
  if rank > now then
    redis.call('ZADD', room_key(g.model, 'later'), whole(rank), g.id)
  else
    seat(g, rank)
  end
  keep_room(g.model)
end

local function vacate(model, user, id)
  local queue = queue_key(model, user)
  redis.call('ZREM', room_key(model, 'order'), id)
  redis.call('ZREM', room_key(model, 'later'), id)
  if redis.call('ZREM', queue, id) == 1 and redis.call('ZCARD', queue) == 0 then
    local users = room_key(model, 'users')
    local counter = redis.call('ZSCORE', users, user)
    redis.call('ZREM', users, user)
    if counter then redis.call('ZADD', room_key(model, 'served'), counter, user) end
  end
end

local function leave(g)
  if g.state ~= 'waiting' then return end
  vacate(g.model, g.user, g.id)
  set(g, {state = 'idle'})
end

local function lease_end(g)
  return tonumber(redis.call('ZSCORE', LEASES, g.id) or 0)
end

local function drop_lease(g)
  redis.call('ZREM', LEASES, g.id)
  if g.state ~= 'leased' then return end
  local running = room_key(g.model, 'running')
  if redis.call('HINCRBY', running, g.user, -1) <= 0 then redis.call('HDEL', running, g.user) end
  set(g, {state = 'idle'})
end

local function refund(g)
  adjust(g.model, g.user, -g.charge)
  set(g, {charge = 0})
end

-- The attempt is lost, its ticket is not: until someone claims, its holder may still write.
local function lapse(g)
  drop_lease(g)
  refund(g)
  set(g, {lost = g.lost + 1})
end

-- The last word of a generation. `cost` in tokens settles what the claim charged; below 0 it is not known.
local function conclude(g, event, cost)
  leave(g)
  drop_lease(g)
  if cost >= 0 then adjust(g.model, g.user, math.max(cost, g.charge > 0 and MIN_CHARGE or 0) - g.charge) end
  set(g, {ticket = '', state = 'finished'})
  local seq = write(g, event)
  keep(g)
  keep_room(g.model)
  return seq
end
