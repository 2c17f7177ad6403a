-- How many leading blocks of a chain each holder has, in O(distinct answers * log(blocks)) probes.
--
-- ARGV: chain (8 bytes a key), epoch and newest id that the client has names up to
-- Returns epoch, newest id, {holder, id, ...} and {holder, adapters, ...} newer than the client's, and then for each
-- distinct answer the number of blocks and the ids that hold exactly so many.
local chain = ARGV[1]
local state = call('HMGET', STATE, 'epoch', 'last', 'dead')
local known = state[1] == ARGV[2] and ARGV[3] or '0'
local answer = {
  state[1] or '',
  tonumber(state[2] or 0),
  call('ZRANGEBYSCORE', HOLDERS, '(' .. known, '+inf', 'WITHSCORES'),
  {},
}
for _, holder in ipairs(call('ZRANGEBYSCORE', ADAPTERS, '(' .. known, '+inf')) do
  local lists = answer[4]
  lists[#lists + 1] = holder
  lists[#lists + 1] = call('HGET', STATE, 'a:' .. holder) or ''
end

local dead = {}
for i = 1, #(state[3] or ''), 3 do
  dead[sub(state[3], i, i + 2)] = true
end
local anyone_dead = next(dead) ~= nil
local alive = {}

local function without_dead(ids)
  if not alive[ids] then
    local kept = {}
    for i = 1, #ids, 3 do
      local id = sub(ids, i, i + 2)
      if not dead[id] then
        kept[#kept + 1] = id
      end
    end
    alive[ids] = table.concat(kept)
  end
  return alive[ids]
end

local function holders_of(block)
  local ids = call('HGET', BLOCKS, sub(chain, 8 * block + 1, 8 * block + 8)) or ''
  return anyone_dead and without_dead(ids) or ids
end

-- What `wide` [from, to) holds beyond `narrow` [first, last), which is a part of it. Halves of equal size are equal.
local function beyond(wide, from, to, narrow, first, last, found)
  if to - from == last - first then
    return
  elseif first == last then
    found[#found + 1] = sub(wide, 3 * from + 1, 3 * to)
    return
  end
  local middle = floor((first + last) / 2)
  local place = find(wide, sub(narrow, 3 * middle + 1, 3 * middle + 3), from, to)
  beyond(wide, from, place, narrow, first, middle, found)
  beyond(wide, place + 1, to, narrow, middle + 1, last, found)
end

local function emit(blocks, wide, narrow)
  local found = {}
  beyond(wide, 0, #wide / 3, narrow, 0, #narrow / 3, found)
  if #found > 0 then
    answer[#answer + 1] = blocks
    answer[#answer + 1] = table.concat(found)
  end
end

-- Who holds a block holds all before it: between two blocks with the same holders nothing changes.
local function explore(low, at_low, high, at_high)
  if at_low == at_high then
    return
  elseif high - low == 1 then
    emit(high, at_low, at_high)
    return
  end
  local middle = floor((low + high) / 2)
  local at_middle = holders_of(middle)
  explore(low, at_low, middle, at_middle)
  explore(middle, at_middle, high, at_high)
end

local last, at_first = #chain / 8 - 1, holders_of(0)
if at_first ~= '' then
  local at_last = holders_of(last)
  explore(0, at_first, last, at_last)
  emit(last + 1, at_last, '')
end
return answer
