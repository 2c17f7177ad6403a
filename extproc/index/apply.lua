-- Write one piece of a change: forget, then remove, then add. Exactly once, by the present owner only.
--
-- ARGV: holder, owner as the writer knows it ('' where it never wrote), number of its newest acknowledged write,
--       number of this write, owner that this write makes where it takes possession, '1' to forget,
--       keys to remove, keys to add (8 bytes each), retention in ms, and where they changed the holder's LoRA adapters
-- Returns 1: done; 0: an old write that came late, ignored; -1: the writer is no longer the owner of what it wrote.
local holder, owner, acknowledged, number = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local new_owner, forget, remove, add, retention = ARGV[5], ARGV[6] == '1', ARGV[7], ARGV[8], ARGV[9]

ensure_pool(new_owner)
local id = call('ZSCORE', HOLDERS, holder)
local entry = id and call('HGET', STATE, 'h:' .. holder)
local present, applied, held
if entry then
  present, applied, held = struct.unpack('>c16dd', entry)
  -- The first half of an owner is its process: numbers of one process only rise.
  if sub(present, 1, 8) == sub(new_owner, 1, 8) and applied >= number then
    return 0
  end
end

local instance, guesser = string.match(holder, '^([^%z]+)%z(~[^%z]*)$')
if forget and not string.find(holder, '%z') then
  for _, guess in ipairs(guesses_about(holder)) do
    retire(guess.holder, guess.id)
  end
  call('HDEL', STATE, 'g:' .. holder)
end

if forget or (owner == '' and not entry) then
  if id then
    retire(holder, id)
  end
  if guesser then
    local names = guesser .. '\0'
    for _, guess in ipairs(guesses_about(instance)) do
      names = names .. guess.writer .. '\0'
    end
    call('HSET', STATE, 'g:' .. instance, names)
  end
  id, present, held = call('HINCRBY', STATE, 'last', 1), new_owner, 0
  call('ZADD', HOLDERS, id, holder)
elseif owner == '' then
  present = new_owner
elseif not entry or present ~= owner or applied < acknowledged then
  return -1
end

local own = struct.pack('>I3', id)

local function keys_of(packed)
  local keys = {}
  for i = 1, #packed, 8 do
    keys[#keys + 1] = sub(packed, i, i + 7)
  end
  return keys
end

if remove ~= '' then
  local keys, set, unset = keys_of(remove), {}, {}
  local values = call('HMGET', BLOCKS, unpack(keys))
  for i = 1, #keys do
    local ids = values[i]
    if ids then
      local place, stands = find(ids, own, 0, #ids / 3)
      if stands then
        held = held - 1
        if #ids == 3 then
          unset[#unset + 1] = keys[i]
        else
          set[#set + 1] = keys[i]
          set[#set + 1] = sub(ids, 1, 3 * place) .. sub(ids, 3 * place + 4)
        end
      end
    end
  end
  if #set > 0 then
    call('HSET', BLOCKS, unpack(set))
  end
  if #unset > 0 then
    call('HDEL', BLOCKS, unpack(unset))
  end
end

if add ~= '' then
  local keys, set = keys_of(add), {}
  local values = call('HMGET', BLOCKS, unpack(keys))
  for i = 1, #keys do
    local ids = values[i] or ''
    local place, stands = find(ids, own, 0, #ids / 3)
    if not stands then
      held = held + 1
      set[#set + 1] = keys[i]
      set[#set + 1] = sub(ids, 1, 3 * place) .. own .. sub(ids, 3 * place + 1)
    end
  end
  if #set > 0 then
    call('HSET', BLOCKS, unpack(set))
  end
end

if ARGV[10] then
  call('HSET', STATE, 'a:' .. holder, ARGV[10])
  call('ZADD', ADAPTERS, call('HINCRBY', STATE, 'last', 1), holder)
end

call('HSET', STATE, 'h:' .. holder, struct.pack('>c16ddd', present, number, held, clock()))
keep_for(retention)
return 1
