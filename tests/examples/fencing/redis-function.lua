#!lua name=rowlock
-- FCALL fenced_set 2 FENCE DATA TOKEN VALUE, for Redis 7.
local function is_stale(token, seen)
    return #token < #seen or (#token == #seen and token < seen)
end

redis.register_function('fenced_set', function(keys, argv)
    local seen = redis.call('GET', keys[1]) or '0'
    if not argv[1]:match('^[1-9]%d*$') or is_stale(argv[1], seen) then
        return redis.error_reply('STALE token ' .. argv[1] .. ', a holder with ' .. seen .. ' has written')
    end
    redis.call('SET', keys[1], argv[1])
    redis.call('SET', keys[2], argv[2])
    return 'OK'
end)
