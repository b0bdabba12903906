-- The GPU lease of one host. Every change is one call of this script, so that a holder, a waiter and an expiry
-- never race. Time is the server's; no client's clock is trusted.
--
-- Keys, all under KEYS[1] = {mlxp:lease:<host>} (one hash slot):
--   :records   hash    token -> JSON {mode, class, rank, reason, bytes, job, ticket, since, fence, granted}
--                      fence 0: waiting; otherwise holding. Times in ms since 1970, bytes as numbers.
--   :expiry    zset    token -> ms at which a silent waiter or holder is dropped
--   :resident  hash    name -> bytes kept in memory by loaded models, held or not
--   :fence     string  the newest fencing number
--   :ticket    string  the newest ticket; waiters of one rank are served by ticket
--   :policy    string  the newest policy given, JSON
--   :born      string  ms of the first call after a start or a wipe
--   :history   list    JSON {at, what, token, class, reason, job, fence, held_ms}, newest first, 200 kept
--   :wake:<t>  list    one element when waiter <t> was granted; it sleeps on this
--
-- ARGV[1] op: acquire | renew | release | look | reside
-- ARGV[2] token (reside: name)
-- ARGV[3] ttl, ms          how long silence is tolerated
-- ARGV[4] record, JSON     acquire: mode, class, rank, reason, bytes, job; renew: the same plus fence
-- ARGV[5] policy, JSON     {budget, slice_ms, patience_ms, settle_ms}; budget 0: unlimited. "" is the newest one
--                          given, so that a mere look never lets in what the host would not
--
-- Answer of acquire and renew: {fence, wanted, ahead, short}
--   fence   the fencing number, 0 while waiting or lost, -1 when it can never fit the budget
--   wanted  1 when somebody this holder should make room for is waiting
--   ahead   waiters in front of this one
--   short   bytes that are lacking for the first waiter
-- Answer of look: JSON of everything.

local base, op, token = KEYS[1], ARGV[1], ARGV[2]
local ttl = tonumber(ARGV[3])
local policy_key = base .. ':policy'
local policy_text = ARGV[5] ~= '' and ARGV[5] or redis.call('GET', policy_key)
  or '{"budget":0,"slice_ms":30000,"patience_ms":20000,"settle_ms":0}'
local policy = cjson.decode(policy_text)
if ARGV[5] ~= '' then redis.call('SET', policy_key, policy_text) end
local records_key, expiry_key, history_key = base .. ':records', base .. ':expiry', base .. ':history'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local born = tonumber(redis.call('GET', base .. ':born'))
if not born then
  born = now
  redis.call('SET', base .. ':born', string.format('%d', now))
end

local records = {}
local flat = redis.call('HGETALL', records_key)
for i = 1, #flat, 2 do records[flat[i]] = cjson.decode(flat[i + 1]) end

local function save(who) redis.call('HSET', records_key, who, cjson.encode(records[who])) end

local function note(what, who)
  local r = records[who]
  local held = r.fence > 0 and now - r.granted or 0
  redis.call('LPUSH', history_key, cjson.encode({
    at = now, what = what, token = who, class = r.class, mode = r.mode, reason = r.reason, job = r.job, fence = r.fence, held_ms = held,
  }))
  redis.call('LTRIM', history_key, 0, 199)
end

local function drop(who, what)
  if records[who] then
    if records[who].fence > 0 or what == 'expired' then note(what, who) end
    records[who] = nil
    redis.call('HDEL', records_key, who)
  end
  redis.call('ZREM', expiry_key, who)
  redis.call('DEL', base .. ':wake:' .. who)
end

for _, who in ipairs(redis.call('ZRANGEBYSCORE', expiry_key, '-inf', now)) do drop(who, 'expired') end

-- A waiter which was patient long enough stands one rank better, so that no class waits for ever.
local function rank(r)
  if r.fence == 0 and now - r.since >= policy.patience_ms then return math.max(r.rank - 1, 0) end
  return r.rank
end

local function waiters()
  local list = {}
  for who, r in pairs(records) do
    if r.fence == 0 then table.insert(list, who) end
  end
  table.sort(list, function(a, b)
    local ra, rb = rank(records[a]), rank(records[b])
    if ra ~= rb then return ra < rb end
    return records[a].ticket < records[b].ticket
  end)
  return list
end

local function compatible(r)
  for _, other in pairs(records) do
    if other.fence > 0 and (r.mode ~= 'shared' or other.mode ~= 'shared') then return false end
  end
  return true
end

local function used()
  local sum = 0
  for _, r in pairs(records) do
    if r.fence > 0 then sum = sum + r.bytes end
  end
  for _, bytes in ipairs(redis.call('HVALS', base .. ':resident')) do sum = sum + tonumber(bytes) end
  return sum
end

local function lacking(r)
  if policy.budget <= 0 then return 0 end
  return math.max(used() + r.bytes - policy.budget, 0)
end

local function grant()
  -- After a start or a wipe, holders from before get a moment to come back before anybody new is let in.
  if now - born < policy.settle_ms then return end
  while true do
    local first = waiters()[1]
    if not first then return end
    local r = records[first]
    if not compatible(r) or lacking(r) > 0 then return end
    -- Never below the clock: numbers keep growing even when the counter was wiped.
    local fence = math.max(tonumber(redis.call('GET', base .. ':fence') or '0') + 1, now)
    redis.call('SET', base .. ':fence', string.format('%d', fence))
    r.fence, r.granted = fence, now
    save(first)
    note('granted', first)
    redis.call('RPUSH', base .. ':wake:' .. first, 1)
    redis.call('PEXPIRE', base .. ':wake:' .. first, math.max(ttl, 1000))
  end
end

-- Whether this holder stands in the way of a waiter it should make room for: one of better rank, or one of
-- another class and equal rank once this holder had its slice.
local function wanted(me)
  local mine = records[me]
  for _, who in ipairs(waiters()) do
    local r = records[who]
    local blocked = mine.mode ~= 'shared' or r.mode ~= 'shared' or lacking(r) > 0
    if blocked then
      if rank(r) < mine.rank then return 1 end
      if rank(r) == mine.rank and r.class ~= mine.class and now - mine.granted >= policy.slice_ms then return 1 end
      if r.rank > mine.rank and rank(r) <= mine.rank then return 1 end
    end
  end
  return 0
end

local function answer(me)
  local r, queue = records[me], waiters()
  local ahead = 0
  for i, who in ipairs(queue) do
    if who == me then ahead = i - 1 end
  end
  local short = queue[1] and lacking(records[queue[1]]) or 0
  return { r.fence, r.fence > 0 and wanted(me) or 0, ahead, short }
end

if op == 'release' then
  drop(token, 'released')
  grant()
  return { 0, 0, 0, 0 }
end

if op == 'reside' then
  local bytes = tonumber(ARGV[4])
  if bytes > 0 then
    redis.call('HSET', base .. ':resident', token, string.format('%d', bytes))
  else
    redis.call('HDEL', base .. ':resident', token)
  end
  grant()
  return { 0, 0, 0, 0 }
end

if op == 'look' then
  grant()
  local holders, queue = {}, {}
  for who, r in pairs(records) do
    if r.fence > 0 then
      r.token, r.wanted = who, wanted(who) == 1
      table.insert(holders, r)
    end
  end
  for i, who in ipairs(waiters()) do
    local r = records[who]
    r.token, r.ahead, r.lacking = who, i - 1, lacking(r)
    table.insert(queue, r)
  end
  local resident, pairs_ = {}, redis.call('HGETALL', base .. ':resident')
  for i = 1, #pairs_, 2 do table.insert(resident, { name = pairs_[i], bytes = tonumber(pairs_[i + 1]) }) end
  local history = {}
  for _, line in ipairs(redis.call('LRANGE', history_key, 0, 49)) do table.insert(history, cjson.decode(line)) end
  return cjson.encode({
    now = now, holders = holders, waiters = queue, resident = resident, history = history, used = used(), budget = policy.budget,
  })
end

if op == 'renew' then
  local mine = records[token]
  if not mine then
    -- Wiped, not expired: a holder from before comes back with its number, if nobody else got in.
    local claimed = cjson.decode(ARGV[4])
    if claimed.fence <= tonumber(redis.call('GET', base .. ':fence') or '0') or not compatible(claimed) then
      grant()
      return { 0, 0, 0, 0 }
    end
    claimed.ticket, claimed.since, claimed.granted = 0, now, now
    records[token] = claimed
    save(token)
    note('restored', token)
    redis.call('SET', base .. ':fence', string.format('%d', claimed.fence))
  end
  redis.call('ZADD', expiry_key, now + ttl, token)
  grant()
  return answer(token)
end

-- acquire: also a waiter's sign of life.
if not records[token] then
  local r = cjson.decode(ARGV[4])
  if policy.budget > 0 and r.bytes > policy.budget then return { -1, 0, 0, r.bytes - policy.budget } end
  r.ticket, r.since, r.fence, r.granted = redis.call('INCR', base .. ':ticket'), now, 0, 0
  records[token] = r
  save(token)
end
redis.call('ZADD', expiry_key, now + ttl, token)
grant()
return answer(token)
