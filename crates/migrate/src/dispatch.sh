# shellcheck shell=sh disable=SC2154 # the variables are of facts, which rootcellar-migrate writes above
case $# in
0) usage && printf '\n%s\n' "$report" && exit ;;
3) verb=$1 step=$2 ;;
*) usage >&2; exit 64 ;;
esac
case $verb in
do | check | undo) ;;
*) usage >&2; exit 64 ;;
esac
facts "$3" || { echo "$0: claim $3 is not planned; sh $0 prints those that are" >&2; exit 64; }
case " $steps " in
*" $step "*) ;;
*) echo "$0: the steps of claim $3 are: $steps" >&2; exit 64 ;;
esac
trap 'test $? -eq 0 || echo "$verb $step: failed" >&2' EXIT
run_step "$verb" "$step"
