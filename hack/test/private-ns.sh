#!/bin/sh
# Runs a command in a mount namespace of its own, so that its mounts end with it and never appear outside.
#
# Usage: private-ns.sh COMMAND [argument...]
# Needs: unshare (util-linux); without root, unprivileged user namespaces.
set -eu
if [ "$(id -u)" -eq 0 ]; then
    exec unshare --mount --propagation private -- "$@"
fi
exec unshare --user --map-root-user --mount --propagation private -- "$@"
