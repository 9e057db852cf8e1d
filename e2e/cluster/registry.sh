# shellcheck shell=sh
# Starts an empty registry at the address of the chart, https://registry.example, in the network namespace it is sourced
# in. Only programs of this cluster find it and trust it.
#
# Env: RUN PARTS  as in cluster.sh
# Sets and exports SSL_CERT_FILE, the certificate that crane, cosign and helm trust.

export SSL_CERT_FILE="$RUN/pki/registry.crt"
ip addr add 172.30.0.2/24 dev br0
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=registry.example -addext subjectAltName=DNS:registry.example \
    -keyout "$RUN/pki/registry.key" -out "$SSL_CERT_FILE" 2>/dev/null
{ cat /etc/hosts && echo '172.30.0.2 registry.example'; } >"$RUN/hosts"
mount --bind "$RUN/hosts" /etc/hosts
cat >"$RUN/registry.yaml" <<END
version: 0.1
log: {accesslog: {disabled: true}, level: warn}
storage: {filesystem: {rootdirectory: "$RUN/registry"}}
http: {addr: "172.30.0.2:443", tls: {certificate: "$SSL_CERT_FILE", key: "$RUN/pki/registry.key"}}
END
OTEL_TRACES_EXPORTER=none registry serve "$RUN/registry.yaml" >"$RUN/log/registry" 2>&1 &
echo $! >"$RUN/registry.pid"
for _ in $(seq 100); do
    ! crane catalog registry.example >/dev/null 2>&1 || break
    sleep 0.1
done
crane catalog registry.example >/dev/null
