#!/usr/bin/env bash
# Creates the secrets for compose.yaml, and keeps existing files:
#   .env            random secrets
#   tls/ca.pem      a private CA
#   tls/media.pem   the media service's certificate, signed by this CA
#   tls/edge.pem    a self-signed certificate for the host name; replace it with a real one
#
#   ./make-secrets.sh telapi.example
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 HOST" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")"
umask 077
mkdir -p tls

if [ ! -e tls/ca.pem ]; then
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj '/CN=telapi media CA' \
		-keyout tls/ca.key -out tls/ca.pem 2>/dev/null
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=media' -keyout tls/media.key -out tls/media.csr 2>/dev/null
	openssl x509 -req -in tls/media.csr -CA tls/ca.pem -CAkey tls/ca.key -CAcreateserial -days 825 \
		-extfile <(echo 'subjectAltName=DNS:media,DNS:localhost,IP:127.0.0.1') -out tls/media.pem 2>/dev/null
	rm tls/media.csr
	chmod 644 tls/media.key tls/media.pem # for the container's user; other users can't enter the directory
fi
if [ ! -e tls/edge.pem ]; then
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 -subj "/CN=$1" -addext "subjectAltName=DNS:$1" \
		-keyout tls/edge.key -out tls/edge.crt 2>/dev/null
	cat tls/edge.crt tls/edge.key >tls/edge.pem
	rm tls/edge.key tls/edge.crt
	chmod 644 tls/edge.pem
	echo "tls/edge.pem is self-signed: replace it with the chain and key of a real certificate for $1."
fi
if [ ! -e .env ]; then
	secret() { openssl rand -hex 32; }
	cat >.env <<-ENV
		PUBLIC_HOST=$1
		JWT_SECRET=$(secret)
		METRICS_TOKEN=$(secret)
		MEDIA_UPLOAD_TOKEN=$(secret)
		POSTGRES_PASSWORD=$(secret)
		REDIS_PASSWORD=$(secret)
		MEDIA_CA_BUNDLE=$(base64 -w0 <tls/ca.pem)
	ENV
	echo "Secrets are in $PWD/.env. The console needs JWT_SECRET."
fi
