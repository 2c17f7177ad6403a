-- One small step of the clean-up: take dead ids out of some values, and drop values that nobody holds any more.
--
-- ARGV: who asks (8 bytes), ms that its lease on the sweeping lasts, retention in ms, fields to look at
-- Returns 1 where another step is to follow, 0 where there is nothing to do, or where another process does it.
local me, lease, retention, fields = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local now = clock()
local state = call('HMGET', STATE, 'epoch', 'sweeper', 'doomed', 'cursor')
if not state[1] then
  return 0
end
if state[2] and #state[2] == 16 then
  local leader, until_ms = struct.unpack('>c8d', state[2])
  if leader ~= me and now < until_ms and until_ms <= now + lease then -- beyond that it is of another clock
    return 0
  end
end
call('HSET', STATE, 'sweeper', struct.pack('>c8d', me, now + lease))

-- A round deals with the ids that were dead when it began; HSCAN shows every field that stands throughout a round.
local doomed, cursor = state[3], state[4]
if not doomed then
  local all = call('HGETALL', STATE)
  for i = 1, #all, 2 do
    local kind, name, value = sub(all[i], 1, 2), sub(all[i], 3), all[i + 1]
    if (kind == 'h:' and #value ~= 40) or (kind == 'r:' and #value < 8) then
      -- No script of ours wrote it. If it stands in the place of something, that one's writer will notice.
      call('HDEL', STATE, all[i])
    elseif kind == 'h:' then
      local _, _, _, heard = struct.unpack('>c16ddd', value)
      if now - heard > tonumber(retention) then
        retire(name, call('ZSCORE', HOLDERS, name) or 0)
      end
    elseif kind == 'r:' and now - struct.unpack('>d', value) > tonumber(retention) then
      call('HDEL', STATE, all[i])
    elseif kind == 'g:' and #guesses_about(name) == 0 then
      call('HDEL', STATE, all[i])
    end
  end
  doomed, cursor = call('HGET', STATE, 'dead') or '', '0'
  if doomed == '' then
    return 0
  end
  call('HSET', STATE, 'doomed', doomed)
end

local gone = {}
for i = 1, #doomed, 3 do
  gone[sub(doomed, i, i + 2)] = true
end
local page = call('HSCAN', BLOCKS, cursor, 'COUNT', fields)
for i = 1, #page[2], 2 do
  local key, ids = page[2][i], page[2][i + 1]
  if #key == 8 then
    local kept = {}
    for j = 1, #ids, 3 do
      local id = sub(ids, j, j + 2)
      if not gone[id] then
        kept[#kept + 1] = id
      end
    end
    if #kept == 0 then
      call('HDEL', BLOCKS, key)
    elseif 3 * #kept < #ids then
      call('HSET', BLOCKS, key, table.concat(kept))
    end
  end
end

if page[1] ~= '0' then
  call('HSET', STATE, 'cursor', page[1])
  return 1
end
local left = sub(call('HGET', STATE, 'dead'), #doomed + 1)
call('HSET', STATE, 'dead', left)
call('HDEL', STATE, 'doomed', 'cursor')
return left ~= '' and 1 or 0
