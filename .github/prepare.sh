#!/bin/sh
# Prepares the container of a workflow's job: git reads the checkout, which another user owns, and rustup is installed.
# hack/build/setup.sh installs the rest.
#
# Needs: root, curl and git; x86_64.
# Env:   GITHUB_WORKSPACE  the checkout
#        GITHUB_PATH       the file of directories that later steps have in PATH
#        RUNNER_TEMP       a directory for temporary files
set -eu
version=1.28.2
sum=20a06e644b0d9bd2fbdbfd52d42540bdde820ea7df86e92e533c073da0cdd43c
init=$RUNNER_TEMP/rustup-init

git config --global --add safe.directory "$GITHUB_WORKSPACE"
curl --fail --silent --show-error --location --retry 3 --proto '=https' --output "$init" \
    "https://static.rust-lang.org/rustup/archive/$version/x86_64-unknown-linux-gnu/rustup-init"
echo "$sum  $init" | sha256sum --check --quiet
chmod +x "$init"
"$init" -y --quiet --no-modify-path --profile minimal --default-toolchain none
rm "$init"
echo "$HOME/.cargo/bin" >>"$GITHUB_PATH"
