-- Everything that an operator may ask: the server's clock, the state and the adapters.
return { tostring(clock()), call('HGETALL', STATE), call('ZRANGE', ADAPTERS, 0, -1) }
