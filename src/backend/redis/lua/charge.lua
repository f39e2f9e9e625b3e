  until true

  if plan then
    hear(wanted, key, last, through, code, remaining, retry, reset)
  else
    reply[length + 1], reply[length + 2] = 8 * remaining + code, reset
    length = length + 2
    if DENY <= code then
      length = length + 1
      reply[length] = retry
    end
  end
end
