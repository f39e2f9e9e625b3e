#!/usr/bin/env bash
# Checks of three API keys, for six seconds or longer.
for _ in $(seq 60); do
    for key in a b c; do
        body='{"domain": "shop", "descriptors": [{"entries": [{"key": "api_key", "value": "'$key'"}]}]}'
        curl -s -o /dev/null localhost:8080/json -d "$body"
    done
    sleep 0.1
done
