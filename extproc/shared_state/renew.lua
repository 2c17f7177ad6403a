-- Renew a follower's leases on the instances of a pool, and spread them over the followers.
--
-- KEYS: the leases, a hash: l:INSTANCE -> deadline (ms of this server's clock), replica; m:REPLICA likewise
-- ARGV: replica, ms that a lease lasts, members seen at the last renewal, number of orphans, orphans ..., wanted ...
--
-- Takes what is free, up to a fair share, and orphans beyond it: those that nobody took for two renewals, because the
-- members do not all want the same. Gives back what exceeds the share, but only where a member came (or `members` is 0):
-- otherwise an orphan would be given back and taken again for ever.
--
-- A deadline further ahead than a lease lasts is of another clock: this server's before it was set back, or that of a
-- server whose place this one took. It counts from now on, so that a dead follower is succeeded as soon as ever.
--
-- Returns the number of members, the instances held, and those that are still free.
local leases, call = KEYS[1], redis.call
local me, lease, members_before, orphans = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local mine = struct.pack('>d', now + lease) .. me

call('HSET', leases, 'm:' .. me, mine)
local members, holder = 0, {}
local all = call('HGETALL', leases)
for i = 1, #all, 2 do
  -- What is too short was written by no router of ours, and must not keep them all from their leases.
  local kind, name = all[i]:sub(1, 2), all[i]:sub(3)
  local deadline = #all[i + 1] >= 8 and struct.unpack('>d', all[i + 1]) or 0
  if not (deadline > now) then
    call('HDEL', leases, all[i])
  else
    local who = all[i + 1]:sub(9)
    if deadline > now + lease then
      call('HSET', leases, all[i], struct.pack('>d', now + lease) .. who)
    end
    if kind == 'm:' then
      members = members + 1
    else
      holder[name] = who
    end
  end
end

local orphan, wanted = {}, {}
for i = 5, 4 + orphans do
  orphan[ARGV[i]] = true
end
for i = 5 + orphans, #ARGV do
  wanted[ARGV[i]] = true
end
for name, replica in pairs(holder) do
  if replica == me and not wanted[name] then
    call('HDEL', leases, 'l:' .. name)
  end
end

local share = math.ceil((#ARGV - 4 - orphans) / members)
local keep_all = members_before > 0 and members <= members_before
local held, free, left = {}, {}, {}
for i = 5 + orphans, #ARGV do
  local name = ARGV[i]
  if holder[name] == me and (keep_all or #held < share) then
    held[#held + 1] = name
  elseif holder[name] == me then
    call('HDEL', leases, 'l:' .. name)
    left[#left + 1] = name
  elseif not holder[name] then
    free[#free + 1] = name
  end
end
for i = 1, #free do
  if #held < share or orphan[free[i]] then
    held[#held + 1] = free[i]
  else
    left[#left + 1] = free[i]
  end
end
for i = 1, #held do
  call('HSET', leases, 'l:' .. held[i], mine)
end
call('PEXPIRE', leases, 10 * lease)
return { members, held, left }
