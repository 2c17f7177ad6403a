-- Note where the followers of events stand, and that they live.
--
-- ARGV: retention in ms, epoch for a pool that does not exist yet, and for each instance its name, owner ('' where
--       the follower wrote nothing yet), number of the newest acknowledged write, report
-- Returns the names of the instances whose owner is another or whose writes are gone; their reports are not taken.
ensure_pool(ARGV[2])
local now, lost = clock(), {}
for i = 3, #ARGV, 4 do
  local instance, owner, acknowledged, report = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local entry = call('HGET', STATE, 'h:' .. instance)
  local present, applied, held
  if entry then
    present, applied, held = struct.unpack('>c16dd', entry)
  end
  -- Another number of the same process is a possession that it took meanwhile.
  if owner ~= '' and (not entry or sub(present, 1, 8) ~= sub(owner, 1, 8) or applied < acknowledged) then
    lost[#lost + 1] = instance
  else
    call('HSET', STATE, 'r:' .. instance, struct.pack('>d', now) .. report)
    if entry then
      call('HSET', STATE, 'h:' .. instance, struct.pack('>c16ddd', present, applied, held, now))
    end
  end
end
keep_for(ARGV[1])
return lost
