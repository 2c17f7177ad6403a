-- Everything that an operator may ask: the server's clock and the state.
return { tostring(clock()), call('HGETALL', STATE) }
