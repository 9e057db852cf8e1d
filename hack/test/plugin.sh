#!/bin/sh
# Tests deploy/kubectl-rootcellar with a stand-in for kubectl, in dash, and in busybox with its own tools. `make e2e` runs it on a
# cluster. Last line: N passed, N failed, 0 skipped.
#
# Needs: dash, busybox.
set -euf
plugin=$(realpath "$(dirname "$0")/../../deploy/kubectl-rootcellar")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
passed=0 failed=0
mkdir "$work/bin" "$work/state" "$work/applets"
# The tools that the plugin needs.
for tool in awk cat cut env grep head mktemp mv rm sed sort tr wc; do ln -s "$(command -v busybox)" "$work/applets/$tool"; done
cd "$work/state"
export STATE="$PWD"

# The stand-in answers each question from a file, in the form that the plugin asks for. It writes down what changes something.
cat >"$work/bin/kubectl" <<'END'
#!/bin/sh
set -eu
cd "$STATE"
namespace=''
while :; do
    case $1 in
    --context=*) [ "$1" = --context=other ] || { echo "error: no such context" >&2 && exit 1; } && shift ;;
    --namespace) namespace=$2 && shift 2 ;;
    *) break ;;
    esac
done
[ ! -e down ] || { echo "The connection to the server was refused" >&2 && exit 1; }
case "$*" in
"get daemonsets --all-namespaces "*) cat daemonsets ;;
"get daemonsets --selector "*) awk -v a="$namespace" '$1 == a' daemonsets ;;
"get pods --selector app.kubernetes.io/name=rootcellar "*) cat pods ;;
"get pvc --all-namespaces --field-selector metadata.name="*) awk -v name="${5#*=}" '$2 == name { print $1 }' claims ;;
"get pvc "*" --ignore-not-found "*) awk -v a="$namespace" -v b="$3" '$1 == a && $2 == b { print $2 " " $5 }' claims ;;
"get pvc "*)
    awk -v a="$namespace" -v b="$3" '$1 == a && $2 == b { print $3 " " $4; found = 1 } END { exit !found }' claims ||
        { echo "Error from server (NotFound)" >&2 && exit 1; }
    ;;
"get pv --output jsonpath={range .items[*]}{.metadata.name}{\"\\t\"}"*) awk -v OFS='\t' '{ print $1, $3, ($4 == "-" ? "/" : $4 "/" $5), $6, $8, "", $2, $7 }' pvs ;;
"get pv pvc-"*) awk -v name="$3" '$1 == name { print $2 " " $3 " " $7; found = 1 } END { exit !found }' pvs ;;
"get namespace "*) grep -x "$3" namespaces ;;
"exec "*)
    while [ "$1" != exec ]; do shift; done
    shift
    flags=''
    while :; do case $1 in --*) flags="$flags $1" && shift ;; *) break ;; esac; done
    pod=$1 && shift
    [ "$1 $2 $3 $4" = "--container driver -- /rootcellar" ]
    shift 4
    answer=$(printf '%s' "$pod $*" | tr ' ' _)
    case "$1 ${2:-}" in "volume undelete" | "pool retire") echo "$pod $*" >>changes ;; esac
    [ "$*" != "volume show -" ] || cat
    [ -e "$answer" ] || { echo "error: unable to upgrade connection: no such container" >&2 && exit 1; }
    sed '1d' "$answer"
    status=$(head -n 1 "$answer")
    [ "$status" -eq 0 ] || { echo "rootcellar: it is so" >&2 && echo "command terminated with exit code $status" >&2 && exit "$status"; }
    ;;
# The objects are already in the form in which the plugin reads them.
"create --dry-run=client --validate=false --filename "*) cat "$5" ;;
"create --filename "*)
    echo "create $(cat "$3")" >>changes
    [ ! -e refuse ] || exit 1
    claim=$(sed -n 's/^v1\/PersistentVolumeClaim \([^ ]*\) .*/\1/p' "$3" | tr / ' ')
    [ ! -e late ] || echo "$claim Bound pvc-99" >>claims
    if grep -q "^$claim " claims; then exit 1; fi
    awk '/Claim/ { split($2, name, "/"); print name[1], name[2], "Bound", $3 }' "$3" >>claims
    ;;
"wait pvc/"*) echo "$namespace $*" >>changes ;;
*) echo "an unexpected call: $*" >&2 && exit 99 ;;
esac
END
chmod 755 "$work/bin/kubectl"

answer() { # POD_COMMAND STATUS   stdin is its output
    { echo "$2" && cat; } >"$1"
}
# The cluster before each row.
cluster() {
    rm -f down refuse late changes namespaces
    echo rootcellar-system 3 >daemonsets
    printf '%s\n' 'n1 pod-old Running 2026-01-01T00:00:00Z' 'n1 pod1 Running ' 'n2 pod2 Running ' 'n3 pod3 Pending ' ' pod4 Pending ' >pods
    printf '%s\n' 'shop data Bound pvc-1' 'test data Pending' 'shop web Bound pvc-2' 'shop other Bound pvc-3' 'shop waits Pending' \
        'shop ends Bound pvc-9 2026-01-01T00:00:00Z' >claims
    printf '%s\n' "pvc-1 csi.rootcellar.dev v1-$a-1 shop data Bound n1" "pvc-2 csi.rootcellar.dev v1-$a-2 shop web Bound n2" \
        'pvc-3 other.example vol shop other Bound n1' "pvc-4 csi.rootcellar.dev v1-$a-4 shop left Released n1" \
        "pvc-7 csi.rootcellar.dev v1-$b-7 - - Available n1" >pvs
    printf '%s\n' shop test third >namespaces
}
a=aaaaaaaa000040008000000000000000 b=bbbbbbbb000040008000000000000000
for n in 1 2; do
    answer "pod${n}_pool_list" $((n - 1)) <<END
NAME        STATE        VOLUMES  SNAPSHOTS  RESERVED  FILESYSTEM  ENFORCEMENT  NODE  ID                                    PATH
fast        healthy      12       3          10 GiB    xfs         project      n$n    aaaaaaaa-0000-4000-8000-000000000000  /srv/fast
disks/disk1 unavailable  -        -          -         -           -            -     -                                     /srv/disks/disk1
pool disks/disk1: nothing is at its path; make the directory
END
    sed -i 's/^disks\/disk1 /disks\/disk1  /' "pod${n}_pool_list"
    answer "pod${n}_check" $((n - 1)) <<END
wrong  fast  limits       volumes/x: it is so; way out: mend
END
    answer "pod${n}_volume_list" 0 <<END
NAME   CLAIM      POOL  KIND       SIZE    USED   CREATED               COPY OF
pvc-$n  shop/data  fast  directory  64 MiB  1 MiB  2026-10-12T14:00:00Z  -
END
done
answer pod1_volume_list_--json 1 <<END
{
  "quarantined": [],
  "unavailable": [
    {
      "pool": "other",
      "problem": "away"
    }
  ],
  "volumes": [
    {
      "access_modes": [
        "SINGLE_NODE_WRITER"
      ],
      "claim": {},
      "id": "v1-$a-2",
      "pool": "disks/disk1"
    },
    {
      "id": "v1-$b-7",
      "pool": "fast"
    }
  ]
}
END
answer "pod1_volume_show_v1-$a-1" 0 <<END
volume             pvc-1
pool               fast, at /srv/fast
END
entry() { # ID NAMESPACE CLAIM NAME CREATED [CLASS]
    class=''
    [ $# -lt 6 ] || class="
        \"class\": \"$6\"
      "
    cat <<END
    {
      "access_modes": [
        "SINGLE_NODE_WRITER"
      ],
      "claim": {
        "claim": "$3",
        "namespace": "$2",
        "volume": "$4"
      },
      "created_at": $5,
      "entry": "e",
      "id": "$1",
      "kubernetes": {$class},
      "name": "$4",
      "pool": "fast",
      "seconds_left": 86000,
      "size_bytes": 67108864
    },
END
}
deleted() { # POD STATUS   stdin has the entries
    { printf '{\n  "deleted": [\n' && sed '$ s/,$//' && printf '  ],\n  "unavailable": []\n}\n'; } | answer "$1_volume_list_--deleted_--json" "$2"
}
{
    entry "v1-$a-5" shop lost pvc-5 10 fast
    entry "v1-$a-6" shop twice pvc-6 10 fast
    entry "v1-$a-1" shop data pvc-1 10 fast
    entry "v1-$a-8" shop back pvc-2 10 fast
    entry "v1-$a-10" shop plain pvc-10 10
    entry "v1-$a-11" gone only pvc-11 10 fast
    entry "v1-$a-12" shop ends pvc-12 10 fast
} | deleted pod1 1
{
    entry "v1-$b-6" shop twice pvc-66 20 fast
    entry "v1-$b-5" other same pvc-55 20 fast
    entry "v1-$b-4" third same pvc-56 20 fast
} | deleted pod2 0
objects() { # NODE ID NAMESPACE CLAIM PV
    printf '%s\n' "v1/PersistentVolume /$5 csi.rootcellar.dev $2 $3/$4 topology.rootcellar.dev/node In $1 Retain" \
        "v1/PersistentVolumeClaim $3/$4 $5  /    "
}
objects n1 "v1-$a-5" shop lost pvc-5 | answer "pod1_volume_undelete_v1-$a-5" 0
objects n2 "v1-$b-6" shop twice pvc-66 | answer "pod2_volume_undelete_v1-$b-6" 0
objects n1 "v1-$a-10" shop plain pvc-10 | answer "pod1_volume_undelete_v1-$a-10_--class_fast" 0

# Runs the plugin in each shell, and expects a status, each line of the text in what it prints, and these changes.
row() { # STATUS TEXT CHANGES ARGUMENT...
    status=$1 text=$2 changes=$3
    shift 3
    for shell in "$(command -v dash)" "$(command -v busybox) sh"; do
        cluster
        eval "$before"
        got=0
        # shellcheck disable=SC2086 # the words of the shell
        PATH=$work/bin:$work/applets $shell "$plugin" "$@" >"$work/said" 2>&1 </dev/null || got=$?
        complaint=''
        [ "$got" -eq "$status" ] || complaint="the status is $got, and not $status"
        [ "$(cat changes 2>/dev/null || :)" = "$changes" ] || complaint="it changes '$(cat changes 2>/dev/null || :)', and not '$changes'"
        echo "$text" >"$work/text"
        while IFS= read -r line; do
            grep -qF -e "$line" "$work/said" || complaint="it does not print '$line'"
        done <"$work/text"
        [ -z "$absent" ] || ! grep -q "^$absent" "$work/said" || complaint="it prints $absent"
        if grep -q 'unexpected call\|: not found$\|yntax error' "$work/said"; then complaint="it breaks"; fi
        if [ -z "$complaint" ]; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            echo "FAILED in $shell: kubectl rootcellar $*: $complaint:"
            sed 's/^/    /' "$work/said"
        fi
    done
    before='' absent=''
}
before='' absent=''

# Mistakes in the command line.
row 64 "Usage:" ""
row 0 "Usage:" "" --help
row 0 "Usage:" "" pools -h
row 64 "there is no command frob" "" frob
row 64 "there is no flag --frob" "" pools --frob
row 64 "--namespace needs a value" "" where data --namespace
row 64 "--namespace needs a value" "" where data --namespace --json
row 64 "--id needs a value, and not 'a b'" "" undelete data --id 'a b'
row 64 "--yes has no value" "" undelete data --yes=now
row 64 "pools has no flag --yes" "" pools --yes
row 64 "'\$(reboot)' is no name" "" where "\$(reboot)"
row 64 "'' is no name" "" where ''
row 64 "where needs the name of one claim" "" where
row 64 "where needs the name of one claim" "" where a b
row 64 "'a/b/c' is no claim" "" where a/b/c
row 64 "give the namespace once" "" where shop/data -n test
row 64 "claims needs a node and a pool" "" claims n1
row 64 "exec NODE -- check" "" exec n1 check
row 64 "exec NODE -- check" "" exec n1 --
row 64 "exec needs one node before --" "" exec -- check
row 64 "-- is for exec alone" "" pools -- n1
row 64 "give a claim or --all" "" undelete data --all -n shop
row 64 "--all needs --namespace" "" undelete --all
row 64 "--id is for one claim" "" undelete --all -n shop --id x
row 64 "is not the id of a pool" "" claims n1 fast --id 7

# The cluster and the driver.
before='touch down'
row 1 "The connection to the server was refused
cannot look for the driver" "" pools
before='[ ! -e ../bin/kubectl ] || mv ../bin/kubectl ../bin/away'
row 1 "kubectl is not on the PATH" "" pools
mv ../bin/away ../bin/kubectl
row 1 "no such context" "" pools --context none
before=': >daemonsets'
row 1 "this cluster has no DaemonSet with the label" "" pools
before='echo second 3 >>daemonsets'
row 1 "the namespaces rootcellar-system second have a DaemonSet" "" pools
before='echo second 3 >>daemonsets'
row 0 "wrong  fast  limits" "" check n1 --driver-namespace second
before=': >pods'
row 1 "no node has a pod of the driver" "" check
row 1 "no pod of the driver is on node n9; pods are on: n1 n2 n3" "" exec n9 -- check

# Lists of all nodes, as one table.
row 1 "NODE  NAME         STATE        VOLUMES  SNAPSHOTS  RESERVED  FILESYSTEM  ENFORCEMENT  ID                                    PATH
n1    fast         healthy      12       3          10 GiB    xfs         project      aaaaaaaa-0000-4000-8000-000000000000  /srv/fast
n2    disks/disk1  unavailable  -        -          -         -           -            -                                     /srv/disks/disk1
n1: pool disks/disk1: nothing is at its path; make the directory
n2: rootcellar: it is so
node n3: pod pod3 does not run: Pending
the node cannot be asked: n2 n3" "" pools --context other
row 0 "n1    disks/disk1" "" pools n1
row 0 "NODE  NAME   CLAIM      POOL  KIND       SIZE    USED   CREATED               COPY OF
n1    pvc-1  shop/data  fast  directory  64 MiB  1 MiB  2026-10-12T14:00:00Z  -
n2    pvc-2  shop/data" "" volumes n1 n2
row 1 '      "id": "v1-' "" volumes --json n1
row 0 "n1  wrong  fast  limits       volumes/x: it is so; way out: mend" "" check n1
row 1 "n2  wrong  fast  limits
these nodes have faults or cannot be asked: n2 n3" "" check
answer pod1_pool_retire 3 </dev/null
row 3 "rootcellar: it is so" "pod1 pool retire" exec n1 -- pool retire

# Where a claim is.
row 1 "the namespaces shop test have a claim data; choose one by --namespace" "" where data
row 0 "node               n1
pool               fast, at /srv/fast" "" where data -n shop
row 0 "node               n1" "" where shop/data
row 1 "cannot read claim shop/lost; if it was deleted" "" where lost --namespace=shop
row 1 "no namespace has a claim lost; if it was deleted, run: kubectl rootcellar undelete lost" "" where lost
row 1 "claim shop/waits is Pending and has no volume yet" "" where waits
row 1 "claim shop/other has a volume of other.example" "" where other
row 1 "node               n2
node n2 cannot show volume" "" where web

# The volumes of a pool: pvc-2 moved to another disk, and pvc-7 came from one.
row 0 "NAME   CLAIM      STATUS
pvc-1  shop/data  Bound
pvc-4  shop/left  Released
pvc-7  -          Available" "" claims n1 fast
row 0 "pvc-1
pvc-4
pvc-7" "" claims n1 fast --names
row 0 "pvc-2" "" claims n1 disks/disk1 --names --id "$a"
sed -i 's/"pool": "other"/"pool": "disks\/disk2"/' pod1_volume_list_--json
row 1 "pvc-2
members of the set on node n1 are unavailable or have a quarantined volume: disks/disk2. A volume that was moved there from pool disks/disk1" "" claims n1 disks/disk1 --names --id "$a"
row 0 "pvc-1" "" claims n1 fast --names
# A new pool has the name of the lost one, and a node reports the id of a pool of another node.
absent=pvc-7
row 0 "NAME" "" claims n1 fast --id "$b"
absent=pvc-4
before='sed -i "s/left Released n1/left Released n2/" pvs'
row 0 "PersistentVolume pvc-4 is left out, because it is of node n2
pvc-1" "" claims n1 fast
before='sed -i "s/left Released n1/left Released former/" pvs'
row 0 "pvc-1  shop/data
pvc-4  shop/left" "" claims n1 fast
row 1 "node n1 does not know the id of pool disks/disk1" "" claims n1 disks/disk1
row 1 "cannot ask node n2 which volumes moved" "" claims n2 fast
row 0 "aaaaaaaa-0000-4000-8000-000000000000" "" pool-id n1 fast
row 0 "aaaaaaaa-0000-4000-8000-000000000000" "" pool-id n2 fast
row 1 "node n1 has no pool slow; it has: fast disks/disk1" "" pool-id n1 slow

# A claim comes back.
plan="claim shop/lost
  volume   pvc-5, 64 MiB, removed in 23 h
  of       node n1, pool fast
n1: rootcellar: it is so
these nodes could not be asked for all their pools: n1 n3"
row 1 "$plan
nothing is changed" "" undelete lost
row 0 "$plan
claim shop/lost has its volume again" "pod1 volume undelete v1-$a-5
create $(objects n1 "v1-$a-5" shop lost pvc-5)
shop wait pvc/lost --for jsonpath={.status.phase}=Bound --timeout 1m" undelete lost --yes
row 1 "claim twice had several volumes, of which the newest is first; choose one by --id
v1-$a-6
v1-$b-6" "" undelete twice --yes
row 0 "pvc-66" "pod2 volume undelete v1-$b-6
create $(objects n2 "v1-$b-6" shop twice pvc-66)
shop wait pvc/twice --for jsonpath={.status.phase}=Bound --timeout 1m" undelete twice --id "v1-$b-6" --yes
row 1 "no node has a deleted volume of claim twice with the id x" "" undelete twice --id x --yes
row 1 "the namespaces other third had a claim same; choose one by --namespace" "" undelete same --yes
row 1 "claim shop/data: it exists, and this command changes no existing claim
PersistentVolume pvc-1 still exists" "" undelete data --namespace shop --yes
row 1 "claim shop/ends: it is being deleted" "" undelete ends --yes
row 1 "PersistentVolume pvc-2 still exists, and its late deletion would delete the volume again" "" undelete back --yes
row 1 "its record names no class; give --class" "" undelete plain --yes
row 0 "claim shop/plain has its volume again" "pod1 volume undelete v1-$a-10 --class fast
create $(objects n1 "v1-$a-10" shop plain pvc-10)
shop wait pvc/plain --for jsonpath={.status.phase}=Bound --timeout 1m" undelete plain --class fast --yes
row 1 "create the namespace first: kubectl create namespace gone" "" undelete only --yes
row 1 "PersistentVolume pvc-4 still has the data of claim shop/left" "" undelete left --yes
row 1 "no node has a deleted volume of claim never" "" undelete never --yes
before='touch refuse'
row 1 "volume pvc-5 is back, and claim shop/lost does not have it; when the reason is gone, run: kubectl rootcellar --context other undelete lost --namespace shop --yes" "pod1 volume undelete v1-$a-5
create $(objects n1 "v1-$a-5" shop lost pvc-5)
shop wait pvc/lost --for jsonpath={.status.phase}=Bound --timeout 1m" undelete lost --yes --context other
before='touch late'
row 1 "volume pvc-5 is back, and claim shop/lost does not have it" "pod1 volume undelete v1-$a-5
create $(objects n1 "v1-$a-5" shop lost pvc-5)
shop wait pvc/lost --for jsonpath={.status.phase}=Bound --timeout 1m" undelete lost --yes
row 1 "claim third/same did not come back" "pod2 volume undelete v1-$b-4" undelete same --namespace third --yes

# All claims of a namespace: the newest volume of each, and none whose claim exists.
row 1 "no node has a deleted volume of a claim in the namespace nothing" "" undelete --all -n nothing
row 1 "claim shop/data: it exists
claim shop/lost has its volume again
claim shop/twice has its volume again
not all claims came back" "pod1 volume undelete v1-$a-5
create $(objects n1 "v1-$a-5" shop lost pvc-5)
shop wait pvc/lost --for jsonpath={.status.phase}=Bound --timeout 1m
pod2 volume undelete v1-$b-6
create $(objects n2 "v1-$b-6" shop twice pvc-66)
shop wait pvc/twice --for jsonpath={.status.phase}=Bound --timeout 1m" undelete --all -n shop --yes

# An undelete was interrupted after the volume came back, or after its PersistentVolume was made.
entry "v1-$b-9" shop halfway pvc-13 10 fast | deleted pod2 0
sed 's/"deleted"/"volumes"/; /seconds_left/d' pod2_volume_list_--deleted_--json >pod2_volume_list_--json
deleted pod2 0 </dev/null
objects n2 "v1-$b-9" shop halfway pvc-13 | answer "pod2_volume_undelete_v1-$b-9" 0
whole="pod2 volume undelete v1-$b-9
create $(objects n2 "v1-$b-9" shop halfway pvc-13)
shop wait pvc/halfway --for jsonpath={.status.phase}=Bound --timeout 1m"
row 1 "volume   pvc-13, 64 MiB, exists without its Kubernetes objects" "" undelete halfway
row 0 "claim shop/halfway has its volume again" "$whole" undelete halfway --yes
before="echo 'pvc-13 csi.rootcellar.dev v1-$b-9 shop halfway Available n2 Retain' >>pvs"
row 0 "claim shop/halfway has its volume again" "$whole" undelete halfway --yes
before="echo 'pvc-13 csi.rootcellar.dev v1-$b-9 test halfway Available n2 Retain' >>pvs"
row 1 "no node has a deleted volume of claim shop/halfway" "" undelete shop/halfway --yes
before="echo 'pvc-13 csi.rootcellar.dev v1-$b-9 shop halfway Bound n2 Retain' >>pvs"
row 1 "no node has a deleted volume of claim shop/halfway" "" undelete shop/halfway --yes

# A node lies: no matter what it prints, nothing but the PersistentVolume and the claim of the plan is created.
lie() { # SED_SCRIPT
    objects n1 "v1-$a-5" shop lost pvc-5 | sed "$1" | answer "pod1_volume_undelete_v1-$a-5" 0
    row 1 "nothing is created for claim shop/lost, because node n1 printed other objects than those of its volume pvc-5" \
        "pod1 volume undelete v1-$a-5" undelete lost --yes
}
lie '1s/ n1 / n2 /'
lie "1s/v1-$a-5/v1-$b-5/"
lie '1s/shop/other/'
lie '2s/shop/other/'
lie '1s/ In / NotIn /'
lie '1s/Retain/Retain{"name":"admin","namespace":"kube-system"}/'
lie 1d
lie '2{p;s/.*/rbac.authorization.k8s.io\/v1\/ClusterRoleBinding \/root    \/    /}'
# The label of a node with a long name is shorter.
long=$(printf '%070d' 0 | tr 0 n)
short=$(echo "$long" | cut -c -46)-0123456789abcdef
objects "$short" "v1-$a-5" shop lost pvc-5 | answer "pod1_volume_undelete_v1-$a-5" 0
before="sed -i 's/^n1 /$long /' pods"
row 0 "claim shop/lost has its volume again" "pod1 volume undelete v1-$a-5
create $(objects "$short" "v1-$a-5" shop lost pvc-5)
shop wait pvc/lost --for jsonpath={.status.phase}=Bound --timeout 1m" undelete lost --yes
{
    entry "v1-$a-5" shop lost "pvc-5 x" 10 fast
    entry "v1-\$(reboot)" shop hostile pvc-5 10 fast
    entry "--all" shop hostile pvc-5 10 fast
    entry "v1-$a-5" shop hostile '*' 10 fast
    entry "v1-$a-5" 'a\nb' hostile pvc-5 10 fast
} | deleted pod1 0
absent=claim
row 1 "node n1 lists a volume with a name that Kubernetes does not allow, so it is left out
no node has a deleted volume of claim lost" "" undelete lost --yes
row 1 "no node has a deleted volume of claim hostile" "" undelete hostile --yes
printf 'wrong \033[2J\302\233red \342\200\256x\342\201\246y \303\251\n' | answer pod1_check 0
row 0 "n1  wrong [2Jred xy $(printf '\303\251')" "" check n1

# Nodes without a pod.
before='echo rootcellar-system 5 >daemonsets'
row 1 "the DaemonSet of the driver wants pods on 5 nodes, and 2 of them have none, so they are not asked
these nodes have faults or cannot be asked: (2 without a pod) n2 n3" "" check
before='echo rootcellar-system 5 >daemonsets'
row 1 "2 of them have none" "" undelete halfway --driver-namespace rootcellar-system
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
