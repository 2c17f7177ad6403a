-- Give back all of a follower's leases. KEYS: the leases (`renew.lua`). ARGV: replica
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if all[i + 1]:sub(9) == ARGV[1] then
    redis.call('HDEL', KEYS[1], all[i])
  end
end
