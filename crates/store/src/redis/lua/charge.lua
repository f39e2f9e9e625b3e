-- Ends the loop over the charges, which plan.lua begins: adds the result of one key to the reply.
  until true

  if from then
    add_result(wanted, key, last, through, code, remaining, retry, reset)
  else
    if reset == its_reset then
      length = length + 1
      reply[length] = 16 * remaining + code + 8
    else
      reply[length + 1], reply[length + 2] = 16 * remaining + code, reset
      length, its_reset = length + 2, reset
    end
    if DENY <= code then
      length = length + 1
      reply[length] = retry
    end
  end
end
