-- EVAL: KEYS fence, data; ARGV token, value. One script runs at a time: compare and write are one step.
-- Tokens are compared as text: the numbers of Lua have 53 bits.
if not ARGV[1]:match('^[1-9]%d*$') then return redis.error_reply('STALE no token') end
local seen = redis.call('GET', KEYS[1]) or '0'
if #ARGV[1] < #seen or (#ARGV[1] == #seen and ARGV[1] < seen) then
    return redis.error_reply('STALE token ' .. ARGV[1] .. ', a holder with ' .. seen .. ' has written')
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2])
return 'OK'
