-- ARGV: ttl, model, worker, ticket, lease_ms, prefix_wait_ms, prefix_ttl_ms
-- Returns {'claimed', request, mark, lost, id}, {'later', ms}, or false when nobody waits.
--
-- Looks at the users with the smallest counters and at those of the eldest requests (equal counters are sorted by name
-- in Redis, so among many newcomers the eldest would else be passed over), at a few requests of each: bounded work.
local MAX_USERS = 16
local MAX_ELDEST = 4
local MAX_EACH = 4 -- requests of one user; the others matter when the first waits for another worker
local MAX_DUE = 64 -- requests that become urgent in one claim
local MAX_STALE = 32 -- left over by a generation that expired or was forgotten by other means
local SLACK = 64 -- tokens a conversation whose prefix is here may be behind the fairest and still go first

local model, worker, ticket = ARGV[2], ARGV[3], ARGV[4]
local lease_ms, prefix_wait, prefix_ttl = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local now = now_ms()
local order, later, users = room_key(model, 'order'), room_key(model, 'later'), room_key(model, 'users')
local served = room_key(model, 'served')
local start_clock = clock(model)
local num_stale = 0

redis.call('ZREMRANGEBYSCORE', served, '-inf', whole(start_clock))
redis.call('ZREMRANGEBYSCORE', LEASES, '-inf', whole(now - tonumber(TTL)))

-- The generation if it does wait; else its seat is cleared.
local function waiting(id, user)
  local g = fetch(id)
  if g and g.state == 'waiting' then return g end
  num_stale = num_stale + 1
  vacate(model, user or (g and g.user) or '', id)
  return nil
end

local due = redis.call('ZRANGEBYSCORE', later, '-inf', whole(now), 'WITHSCORES', 'LIMIT', 0, MAX_DUE)
for i = 1, #due, 2 do
  local g = waiting(due[i])
  if g then seat(g, tonumber(due[i + 1])) end
  redis.call('ZREM', later, due[i])
end

-- Milliseconds that it should still wait for the worker that holds its prefix (0 = go), and whether that is this one.
local function wait_for_prefix(g)
  if g.conversation == '' then return 0, false end
  local holder = redis.call('GET', prefix_key(model, g.conversation))
  if holder == worker then return 0, true end
  local rest = prefix_wait - (now - g.waiting)
  if not holder or rest <= 0 then return 0, false end
  local card = redis.call('GET', P .. 'worker:' .. holder)
  if not card or not string.find(card, '"state":"ready"', 1, true) then return 0, false end
  return rest, false
end

local function before(a, b)
  if a.is_front ~= b.is_front then return a.is_front end
  if a.level ~= b.level then return a.level < b.level end
  if a.counter ~= b.counter then return a.counter < b.counter end
  if a.rank ~= b.rank then return a.rank < b.rank end
  return a.id < b.id
end

-- Each user's first urgent requests, the fairest user first.
local function urgent()
  local found, seen = {}, {}
  local function look(user, counter)
    if seen[user] then return end
    seen[user] = true
    local queue = redis.call('ZRANGE', queue_key(model, user), 0, MAX_EACH - 1, 'WITHSCORES')
    if #queue == 0 then redis.call('ZREM', users, user) end
    local turn = nil
    for i = 1, #queue, 2 do
      local rank = tonumber(queue[i + 1])
      local seat_of = {id = queue[i], user = user, rank = rank, is_front = rank < 0, level = 0, counter = counter}
      if turn then
        table.insert(turn.others, seat_of)
      else
        turn = seat_of
        turn.others = {}
        table.insert(found, turn)
      end
    end
  end
  local fairest = redis.call('ZRANGE', users, 0, MAX_USERS - 1, 'WITHSCORES')
  for i = 1, #fairest, 2 do look(fairest[i], tonumber(fairest[i + 1])) end
  for _, id in ipairs(redis.call('ZRANGE', order, 0, MAX_ELDEST - 1)) do
    local user = redis.call('HGET', generation_key(id), 'user')
    local counter = user and redis.call('ZSCORE', users, user)
    if counter then look(user, tonumber(counter)) end
    if not user then waiting(id) end
  end
  table.sort(found, before)
  return found
end

-- Requests whose time has not come, for a worker that has nothing better to do.
local function patient()
  local found = {}
  local queue = redis.call('ZRANGE', later, 0, MAX_USERS - 1, 'WITHSCORES')
  for i = 1, #queue, 2 do
    local g = waiting(queue[i])
    if g then
      local rank = tonumber(queue[i + 1])
      table.insert(found, {id = g.id, user = g.user, rank = rank, is_front = false,
        level = math.ceil((rank - now) / AGE_STEP), counter = returning_counter(model, g.user), others = {}})
    end
  end
  table.sort(found, before)
  return found
end

local least_wait = nil

-- The first of a user's requests that need not wait for another worker.
local function ready(turn)
  local seats = {turn}
  for _, other in ipairs(turn.others) do table.insert(seats, other) end
  for _, candidate in ipairs(seats) do
    local g = waiting(candidate.id, candidate.user)
    if g then
      local rest, is_here = wait_for_prefix(g)
      if rest == 0 then return g, is_here end
      if not least_wait or rest < least_wait then least_wait = rest end
    end
  end
  return nil
end

local function choose(turns)
  local best, best_turn = nil, nil
  for _, turn in ipairs(turns) do
    if best and (turn.is_front ~= best_turn.is_front or turn.level ~= best_turn.level
      or turn.counter > best_turn.counter + SLACK) then break end
    local g, is_here = ready(turn)
    if g then
      if is_here then return g, turn end
      if not best then
        best, best_turn = g, turn
        if now - g.waiting >= prefix_wait then break end
      end
    end
  end
  return best, best_turn
end

local g, turn
repeat
  local stale_before = num_stale
  g, turn = choose(urgent())
until g or num_stale == stale_before or num_stale >= MAX_STALE
if not g then g, turn = choose(patient()) end
if not g then
  if least_wait then return {'later', math.ceil(least_wait)} end
  if num_stale > 0 and redis.call('ZCARD', order) > 0 then return {'later', 1} end
  return false
end

leave(g)
local start = math.max(turn.counter, start_clock)
local charge = math.max(MIN_CHARGE, g.estimate)
local is_still_waiting = redis.call('ZSCORE', users, g.user)
redis.call('ZADD', is_still_waiting and users or served, whole(start + charge), g.user)
redis.call('HSET', room_key(model, 'facts'), 'clock', whole(start + CLOCK_STEP))
redis.call('HINCRBY', room_key(model, 'running'), g.user, 1)
set(g, {state = 'leased', ticket = ticket, worker = worker, claimed = now, charge = charge})
redis.call('ZADD', LEASES, whole(now + lease_ms), g.id)
redis.call('PEXPIRE', LEASES, TTL)
if g.conversation ~= '' then redis.call('SET', prefix_key(model, g.conversation), worker, 'PX', prefix_ttl) end
keep(g)
keep_room(model)
return {'claimed', redis.call('HGET', generation_key(g.id), 'request'), g.mark, g.lost, g.id}
