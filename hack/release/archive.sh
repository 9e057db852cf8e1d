# shellcheck shell=sh
# Defines archive, for other scripts.
# Env: SOURCE_DATE_EPOCH  the time of every file

archive() { # FILE DIRECTORY [name...]   gives the same bytes at every time and for every user
    to=$1 directory=$2
    shift 2
    TAR_OPTIONS='' tar --create --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --mode=a-st,u+rwX,go+rX,go-w --directory "$directory" "$@" >"$to"
}
