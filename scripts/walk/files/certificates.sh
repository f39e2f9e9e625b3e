#!/usr/bin/env bash
# A CA with certificates for the service and for Envoy.
set -e
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=ca -days 2
for name in etc/tls envoy; do
    openssl req -newkey rsa:2048 -nodes -keyout $name.key -out $name.csr -subj /CN=envoy.example
    openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out $name.crt \
        -extfile <(echo subjectAltName=IP:127.0.0.1,DNS:envoy.example)
done
cp ca.crt etc/clients.crt
