-- One pool in Redis: what its four keys hold, and what every script shares. The client puts this before each script.
--
--   blocks    HASH  8-byte block key -> ids of its holders, 3 bytes each, big-endian, ascending; besides, `epoch`
--   holders   ZSET  holder ("INSTANCE" or "INSTANCE\0WRITER") -> its id; besides, "" -> 0, so that it is never empty.
--                   Ids only rise: one id is one incarnation
--   adapters  ZSET  holder that announced LoRA adapters -> a number from the same row, taken when its list changed
--   state     HASH  epoch, last (the newest id), dead (ids given up but perhaps still in values), and by name:
--                   h:HOLDER  owner (16 bytes), newest write applied, blocks held, time of the newest write or report
--                   a:HOLDER  names of its LoRA adapters, with NUL between them
--                   r:INSTANCE  time, report
--                   g:INSTANCE  writers of guesses about it, each followed by a zero byte
--                   besides, the sweeper's: sweeper, cursor, doomed
--
-- Times are milliseconds of this server's clock, so that routers need not agree on theirs.
local BLOCKS, HOLDERS, ADAPTERS, STATE = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local call, byte, sub, floor = redis.call, string.byte, string.sub, math.floor

local function clock()
  local time = call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end

-- The range [first, last) of ids is searched for `id`: its place, counted from 0, and whether it stands there.
local function find(ids, id, first, last)
  local a, b, c = byte(id, 1, 3)
  local wanted = a * 65536 + b * 256 + c
  while first < last do
    local middle = floor((first + last) / 2)
    a, b, c = byte(ids, 3 * middle + 1, 3 * middle + 3)
    if a * 65536 + b * 256 + c < wanted then
      first = middle + 1
    else
      last = middle
    end
  end
  return first, sub(ids, 3 * first + 1, 3 * first + 3) == id
end

-- Where a key alone was lost (evicted, deleted) or ids run out, the pool starts over whole: its writers will notice.
local function ensure_pool(epoch)
  local known = call('HMGET', STATE, 'epoch', 'last')
  if
    known[1]
    and tonumber(known[2]) < 16777200
    and call('HGET', BLOCKS, 'epoch') == known[1]
    and call('ZSCORE', HOLDERS, '')
  then
    return
  end
  call('UNLINK', BLOCKS, HOLDERS, ADAPTERS, STATE)
  call('HSET', BLOCKS, 'epoch', epoch)
  call('ZADD', HOLDERS, 0, '')
  call('HSET', STATE, 'epoch', epoch, 'last', 0)
end

-- A pool that nobody writes any more frees itself.
local function keep_for(retention)
  for i = 1, #KEYS do
    call('PEXPIRE', KEYS[i], retention)
  end
end

-- Give up an incarnation in O(1): its id is dead from here on, the sweeper takes it out of the values later.
local function retire(holder, id)
  call('HSET', STATE, 'dead', (call('HGET', STATE, 'dead') or '') .. struct.pack('>I3', id))
  call('ZREM', HOLDERS, holder)
  call('ZREM', ADAPTERS, holder)
  call('HDEL', STATE, 'h:' .. holder, 'a:' .. holder)
end

-- Writers of guesses about an instance (index/__init__.py): the living ones, with their holders and ids.
local function guesses_about(instance)
  local guesses = {}
  for writer in string.gmatch(call('HGET', STATE, 'g:' .. instance) or '', '([^%z]+)%z') do
    local holder = instance .. '\0' .. writer
    local id = call('ZSCORE', HOLDERS, holder)
    if id then
      guesses[#guesses + 1] = { writer = writer, holder = holder, id = id }
    end
  end
  return guesses
end
