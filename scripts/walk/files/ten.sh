#!/usr/bin/env bash
# Sends checks of one hit until one is denied, and prints its status. Ten of them must pass before it.
# A slow machine may get a few more, because one hit drains each second.
body='{"domain": "shop", "descriptors": [{"entries": [{"key": "api_key", "value": "me"}], "hitsAddend": "1"}]}'
for try in $(seq 100); do
    status=$(curl -s -o /dev/null -w '%{http_code}' localhost:8080/json -d "$body")
    [ "$status" = 200 ] || break
done
if [ "$try" -gt 10 ]; then echo "$status"; else echo "$status at try $try"; fi
