# shellcheck shell=sh disable=SC2030,SC2031,SC2154,SC2317
# A stand-in for kubectl with the objects that a plan for a claim needs, and with the rules of binding. It is a function of the
# plan's shell, because a process for each call takes too long. Its objects are files in STATE:
# pv.NAME.{policy,source,claim,uid,data,label,KEY}, pvc.NAMESPACE.NAME.{uid,volume}, pod.NAME, replicas.KIND.NAME and
# deletion.KIND.NAME, and old.NAME with the old volume of the plan's objects NAME. A request that it does not know fails. So does the one with the number FAIL: before its effect, after
# it, or with the end of the plan, as HOW says.
sleep() { :; }

kubectl() (
    cd "$STATE" || exit
    input=''
    # The end of the input is the end of the program before in a pipe, which has its number then.
    case " $* " in *' --filename '* | *' --stdin '*) input=$(cat) ;; esac
    # The sender runs while the receiver does.
    case " $* " in *' --connect '*) test ! -e unreachable || exit 75; exit ;; esac
    value number
    number=$((${value:-0} + 1))
    echo "$number" >number
    echo "$number $*" >>calls
    test "$number" != "${FAIL-}" || test "$HOW" != early || exit 1
    namespace=default all=" $* "
    case $all in *' --namespace '*) namespace=${all#* --namespace } namespace=${namespace%% *} ;; esac
    if test "$1" = --namespace; then shift 2; fi
    request "$@" || exit
    test "$number" != "${FAIL-}" || {
        test "$HOW" = late || kill -9 0
        exit 1
    }
)

# Sets value to the content of a file, or to nothing.
value() { value='' && if test -e "$1"; then read -r value <"$1" || :; fi; }
put() { printf %s "$2" >"$1"; }
bad() { echo "kubectl: $*" >&2 && exit 1; }

# Sets phase, and claimed to the claim that a volume names.
find_phase() { # PV
    value "pv.$1.claim" && claimed=$value
    value "pv.$1.uid" && bound=$value
    value "pvc.$claimed.uid"
    phase=Available
    if test -n "$bound"; then
        phase=Released
        if test "$value" = "$bound"; then phase=Bound; fi
    fi
}

# Binds a claim to a volume that is reserved for it, or for none.
bind() { # NAMESPACE.CLAIM PV
    if test -e "pv.$2.policy"; then
        find_phase "$2"
        value "pvc.$1.uid"
        case "$phase $claimed" in
        "Available $1" | 'Available ')
            put "pv.$2.claim" "$1"
            put "pv.$2.uid" "$value"
            ;;
        esac
    fi
    put "pvc.$1.volume" "$2"
}

remove_volume() { # PV
    case $(echo "pv.$1".*) in *.data*) echo "$1" >>lost ;; esac
    rm -f "pv.$1".*
}

remove_claim() { # NAMESPACE.NAME
    value "pvc.$1.volume" && volume_of=$value
    rm -f "pvc.$1".*
    value "pv.$volume_of.policy"
    if test "$value" = Delete; then remove_volume "$volume_of"; fi
}

# Sets file to the file that an object has.
find_file() { # KIND/NAME
    case $1 in
    pv/*) file=pv.${1#*/}.policy ;;
    pvc/*) file=pvc.$namespace.${1#*/}.uid ;;
    pod/* | secret/*) file=$(printf %s "$1" | tr / .) ;;
    *) bad "unknown: $1" ;;
    esac
}

get_volume() { # PV
    if ! test -e "pv.$1.policy"; then
        case $all in *' --ignore-not-found '*) return ;; esac
        bad "pv $1 not found"
    fi
    find_phase "$1"
    case $all in
    *annotations.rootcellar*) key=${all##*/} key=${key%\}*} && value "pv.$1.$key" ;;
    *persistentVolumeReclaimPolicy*) value "pv.$1.policy" ;;
    *status.phase*) value="$phase $(echo "$claimed" | tr . /)" ;;
    *claimRef.uid*) value=$bound ;;
    *claimRef.name*) value=$(echo "$claimed" | sed 's|[.]|/|; s|^$|/|') ;;
    *metadata.uid*)
        # That of a volume that was made again.
        value "pv.$1.again"
        value=uid-pv-$1$value
        ;;
    *bound-by-controller*) value "pv.$1.given" ;;
    *hostPath* | *csi.driver*) value "pv.$1.source" ;;
    *volumeHandle*) value=handle-of-$1 ;;
    *matchExpressions*) value=n2 ;;
    *) bad "unknown: $all" ;;
    esac
    printf %s "$value"
}

get_volumes() {
    case $all in
    *--selector*)
        wanted=${all#*--selector } wanted=${wanted%% *} separator=''
        for file in pv.*.label; do
            value "$file"
            test "$value" != "$wanted" || { file=${file#pv.} && printf %s "$separator${file%.label}" && separator=' '; }
        done
        ;;
    *) for file in pv.*.source; do value "$file" && echo "$value"; done ;;
    esac
}

get_claim() { # NAME
    if ! test -e "pvc.$namespace.$1.uid"; then
        case $all in *' --ignore-not-found '*) return ;; esac
        bad "pvc $1 not found"
    fi
    value "pvc.$namespace.$1.volume"
    case $all in
    *volumeName*) printf %s "$value" ;;
    *phase*)
        find_phase "$value"
        if test "$phase $claimed" = "Bound $namespace.$1"; then printf Bound; else printf Pending; fi
        ;;
    esac
}

patch_volume() { # PV
    test -e "pv.$1.policy" || bad "pv $1 not found"
    find_phase "$1"
    case $all in
    *'"persistentVolumeReclaimPolicy": "Retain"'*) put "pv.$1.policy" Retain ;;
    *'"persistentVolumeReclaimPolicy": "Delete"'*)
        put "pv.$1.policy" Delete
        if test "$phase" = Released; then remove_volume "$1"; fi
        ;;
    *claimRef*)
        # Kubernetes also takes a volume from its claim.
        reserved=${all#*'"namespace": "'} reserved=${reserved%%'"'*}
        claimed=${all#*'"name": "'} claimed=${claimed%%'"'*}
        put "pv.$1.claim" "$reserved.$claimed"
        rm -f "pv.$1.uid"
        value "pvc.$reserved.$claimed.volume"
        if test -e "pvc.$reserved.$claimed.uid" && test -z "$value"; then bind "$reserved.$claimed" "$1"; fi
        ;;
    *) bad "unknown: $all" ;;
    esac
}

create_object() {
    kind='' name='' space='' volume_name='' section='' policy_of=''
    while IFS= read -r line; do
        case $section$line in
        'kind: '*) kind=${line#kind: } ;;
        *'  persistentVolumeReclaimPolicy: '*) policy_of=${line#*: } ;;
        'metadata  name: '*) name=${line#*: } ;;
        'metadata  namespace: '*) space=${line#*: } ;;
        'spec  volumeName: '*) volume_name=${line#*: } ;;
        esac
        case $line in [a-z]*:) section=${line%:} ;; [a-z]*) section='' ;; esac
    done <<INPUT
$input
INPUT
    case $kind in
    PersistentVolume)
        test ! -e "pv.$name.policy" || bad "$name exists"
        put "pv.$name.policy" "$policy_of"
        value "old.${name%-source}" && value "pv.$value.source"
        put "pv.$name.source" "$value"
        put "pv.$name.claim" "rootcellar-system.$name"
        ;;
    PersistentVolumeClaim) create_claim "$space.$name" ;;
    Pod)
        test ! -e "pod.$name" || bad "$name exists"
        case $input in *'secretName: '*) test -e "secret.${name%-source}" || bad "$name has no secret" ;; esac
        claim_of=rootcellar-system.${name%-probe}
        put "pod.$name" Running
        value "pvc.$claim_of.volume"
        if test -e "pvc.$claim_of.uid" && test -z "$value"; then
            made=1
            for file in pv.*.free; do
                # A volume that no claim has goes before a new one.
                test -e "$file" || continue
                mv "$file" "${file%.free}.given"
                file=${file#pv.} && bind "$claim_of" "${file%.free}" && return
            done
            while test -e "pv.pvc-new-$made.policy"; do made=$((made + 1)); done
            put "pv.pvc-new-$made.policy" Delete
            put "pv.pvc-new-$made.source" "source-of-pvc-new-$made"
            bind "$claim_of" "pvc-new-$made"
        fi
        ;;
    Secret)
        test ! -e "secret.$name" || bad "$name exists"
        key=${input##*key: }
        test "${#key}" = 64 || bad "not a key: $key"
        put "secret.$name" "$key"
        ;;
    *) bad "unknown kind $kind" ;;
    esac
}

create_claim() { # NAMESPACE.NAME
    test ! -e "pvc.$1.uid" || bad "$1 exists"
    case $volume_name in pvc-new*) test ! -e "refuse.${1%%.*}" || bad 'exceeded quota: storage' ;; esac
    put "pvc.$1.uid" "uid-$number"
    put "pvc.$1.volume" ''
    test -z "$volume_name" || bind "$1" "$volume_name"
}

delete_objects() { # KIND NAME...
    kind=$1 && shift
    for object; do
        case $kind.$object in
        *.-*) ;;
        pod.* | secret.*) rm -f "$kind.$object" ;;
        pvc.*)
            for pod in "$object" "$object-probe" "${object%-source}"; do test ! -e "pod.$pod" || bad "pod $pod uses $object"; done
            remove_claim "$namespace.$object"
            ;;
        pv.*)
            find_phase "$object"
            test "$phase" != Bound || bad "$object is bound"
            rm -f "pv.$object".*
            ;;
        esac
    done
}

delete_exactly_this() { # PATH
    wanted=${input#*'"uid": "'} wanted=${wanted%%'"'*}
    case $1 in
    */persistentvolumeclaims/*)
        space=${1#/api/v1/namespaces/}
        space=${space%%/*}
        value "pvc.$space.${1##*/}.uid"
        test "$value" = "$wanted" || bad "precondition of $1"
        remove_claim "$space.${1##*/}"
        ;;
    *)
        test "uid-pv-${1##*/}" = "$wanted" || bad "precondition of $1"
        rm -f "pv.${1##*/}".*
        ;;
    esac
}

receive() { # DATA
    test ! -e full || bad 'No space left on device'
    test -n "$1" || bad 'the stream ended'
    put "pv.$new.data" "$1"
    echo "fingerprint $1"
}

run_copier() { # [argument...]
    for of; do case $of in rootcellar-move-*) break ;; esac done
    of=${of%-source}
    value "pvc.rootcellar-system.$of.volume" && new=$value
    value "old.$of" && value "pv.$value.data"
    case $all in
    *' need '*) echo "${NEED-100} 3" ;;
    *' space '*) echo '1000 50' ;;
    *' have '*) echo state ;;
    *' fingerprint '*) echo "$value" ;;
    *' --listen '*' --key '*)
        test ! -e unreachable || exit 75
        receive "$value"
        ;;
    *' send '*) test "$input" = state && echo "$value" ;;
    *' local '*) receive "$value" ;;
    *' receive '*) receive "$input" ;;
    *' clean '* | *' label '*) ;;
    *) bad "unknown: $all" ;;
    esac
}

request() { # VERB [argument...]
    case "$1 ${2-}" in
    get\ pv/* | get\ pvc/* | get\ pod/* | get\ secret/*)
        find_file "$2"
        value "$file"
        deleted=''
        if test -e "$file.deleted"; then deleted=now; fi
        if test -e "$file"; then echo "${value:-none} $deleted"; fi
        ;;
    get\ crd/*) echo "$2" ;;
    'get volumesnapshotcontents'*) if test -e snapshots; then cat snapshots; fi ;;
    'get pv') if test "$3" = --selector || test "$3" = --output; then get_volumes; else get_volume "$3"; fi ;;
    'get pvc') get_claim "$3" ;;
    'get pod')
        case $all in
        *podIP*) printf fd00::7 ;;
        *) value "pod.$3" && printf %s "$value" ;;
        esac
        ;;
    'get pods') for file in replicas.*; do value "$file" && test "$value" = 0 || printf '%s ' "$CLAIM"; done ;;
    get\ statefulset/*)
        field=deletion
        case $all in *spec.replicas*) field=replicas ;; esac
        value "$field.$(echo "$2" | tr / .)" && printf %s "$value"
        ;;
    'get events') echo "the events" ;;
    'patch pv') patch_volume "$3" ;;
    patch\ statefulset/*)
        case $all in
        *'"whenScaled": "Retain"'*) put "deletion.$(echo "$2" | tr / .)" Retain ;;
        *) put "deletion.$(echo "$2" | tr / .)" Delete ;;
        esac
        ;;
    'label pv') put "pv.$3.label" "${5}" ;;
    'annotate pv')
        pair=${5#rootcellar.dev/}
        case $pair in
        *=*) put "pv.$3.${pair%%=*}" "${pair#*=}" ;;
        *) rm -f "pv.$3.${pair%-}" ;;
        esac
        ;;
    'delete --raw') delete_exactly_this "$3" ;;
    delete\ *) shift && delete_objects "$@" ;;
    'create --filename') create_object ;;
    'create --dry-run=server') test ! -e forbid || bad 'violates PodSecurity "restricted:latest"' ;;
    exec\ *) run_copier "$@" ;;
    scale\ *) put "replicas.$(echo "$2" | tr / .)" "$4" ;;
    'rollout status') value "replicas.$(echo "$3" | tr / .)" && test "$value" != 0 ;;
    wait\ *)
        find_file "$2"
        case $all in
        *=delete\ *)
            if test -e "$file.deleted"; then rm -f "$file" "$file.deleted"; fi
            test ! -e "$file" || bad "$2 is not deleted"
            ;;
        *Ready\ *) test -e "$file" ;;
        *=Bound\ *) all=phase && test "$(get_claim "${2#*/}")" = Bound ;;
        *) bad "unknown: $all" ;;
        esac
        ;;
    *) bad "unknown: $all" ;;
    esac
}
