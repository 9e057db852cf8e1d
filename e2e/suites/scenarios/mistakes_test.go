package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// mistaken makes all mistakes at once, because their messages come while it waits.
var mistaken = []entry{
	{"the likeliest mistakes: each message names the object, the number and the way out", mistakesAreAnswered},
}

// mistake is one of a user or an administrator, and the message for it.
type mistake struct {
	// name is also the name of its objects.
	name string
	// made makes it, and returns the output of the command if the message is there.
	made func(s *scenario, name string) string
	// read returns the texts that may hold the message, if the command did not print it.
	read func(s *scenario, name string) string
	// words are in the message: the object, the number and, if there is no page, the way out.
	words []string
	// page is the line of docs/troubleshooting.md about a message. Others than the driver name no way out.
	page string
	// proven is the scenario that makes the mistake and reads the message, instead of this one.
	proven func(*scenario)
}

// The page's lines for several mistakes.
const (
	noFreeStorage = "<count> node(s) did not have enough free storage"
	unknownValue  = "additional properties '<name>' not allowed"
)

// withoutCRDs lists those that need a cluster without the CRDs of snapshots.
var withoutCRDs = []mistake{
	{name: "crds-of-the-chart", words: []string{`no matches for kind "VolumeSnapshotClass"`, "ensure CRDs are installed first"},
		made: fails("helm", "install", "rootcellar", chart, "--dry-run=server", "--set", "snapshots.enabled=true")},
	{name: "crds-of-a-snapshot", words: []string{`"cellar"`, `no matches for kind "VolumeSnapshot"`, "ensure CRDs are installed first"},
		made: fails("kubectl", "apply", "-f", filepath.Join(harness.Root, "deploy/examples/snapshots/snapshot.yaml"))},
}

// mistakes lists all others, and one is missing: a denial by SELinux needs a machine with SELinux, as those of
// hack/test/guest/selinux.sh.
var mistakes = slices.Concat(inClasses, inClaims, inSnapshots, inUse, inPools, inInstallations)

// inClasses has StorageClasses by hand; the chart refuses the same values, as in inInstallations.
var inClasses = []mistake{
	{name: "pool", made: ofClass(parameters{"pool": "attic"}), read: events("Pod"), words: []string{"2 node(s)"}, page: noFreeStorage},
	{name: "pool-sent", made: sentByClass(parameters{"pool": "attic"}), words: []string{"node1", "no pool attic", "it has default"}},
	{name: "pool-as-path", made: ofClass(parameters{"pool": "../attic"}), words: []string{`parameter "pool"`, "../attic"}},
	{name: "unknown", made: ofClass(parameters{"colour": "blue"}), words: []string{`parameter "colour"`, "known are pool, kind"}},
	{name: "misspelt", made: ofClass(parameters{"Mode": "0750"}), words: []string{`parameter "Mode"`, "known are", " mode,"}},
	{name: "mode", made: ofClass(parameters{"mode": "0999"}), words: []string{`parameter "mode"`, `"0999"`, "octal mode up to 3777"}},
	{name: "uid", made: ofClass(parameters{"uid": "root"}), words: []string{`parameter "uid"`, `"root"`, "a number from 0"}},
	{name: "kind", made: ofClass(parameters{"kind": "file"}), words: []string{`parameter "kind"`, `"file"`, "directory, image"}},
	{name: "copy", made: ofClass(parameters{"copy": "yes"}), words: []string{`parameter "copy"`, `"yes"`, "allowed, refused"}},
	{name: "enforcement", made: ofClass(parameters{"enforcement": "strict"}),
		words: []string{`parameter "enforcement"`, `"strict"`, "auto, required, none"}},
	{name: "exclusive", made: ofClass(parameters{"exclusive": "true"}),
		words: []string{`parameter "exclusive"`, "needs a pool set", "default is a pool"}},
	{name: "filesystem", made: ofClass(parameters{"csi.storage.k8s.io/fstype": "btrfs"}), read: events("Pod"),
		words: []string{"2 node(s)"}, page: noFreeStorage},
	{name: "filesystem-sent", made: sentByClass(parameters{"csi.storage.k8s.io/fstype": "btrfs"}),
		words: []string{"node1", "pool default is on ext4", `"btrfs"`, "change csi.storage.k8s.io/fstype"}},
	{name: "option", made: ofClass(nil, options("noexec", "sync")), words: []string{`mount option "sync"`, "supported are", "noexec"}},
	{name: "contrary", made: ofClass(nil, options("ro", "rw")), words: []string{"ro and rw contradict each other"}},
	{name: "topology", made: ofClass(nil, byKey(corev1.LabelHostname)), words: []string{"node1"},
		page: "selected node <node> topology <topology> is not in allowed topologies"},
	{name: "topology-of-none", made: ofClass(nil, byKey("topology.rootcellar/node")), read: events("Pod"), words: []string{"2 node(s)"},
		page: "node(s) didn't find available persistent volumes to bind"},
}

var inClaims = []mistake{
	{name: "many", made: claimed("rootcellar", "16Mi", mode(corev1.ReadWriteMany)),
		words: []string{"ReadWriteMany", "request ReadWriteOnce", "sharing=node"}},
	{name: "larger-than-disks", made: claimed("rootcellar", "7Gi"), read: events("Pod"), words: []string{"node(s)"}, page: noFreeStorage},
	{name: "larger-than-left", made: sent("rootcellar", "5Gi"),
		words: []string{"node1", "pool default", "not for 5368709120 bytes", "free space, delete volumes"}},
	{name: "class", made: claimed("rootcelar", "16Mi"), page: `storageclass.storage.k8s.io "<name>" not found`, words: []string{"rootcelar"}},
	{name: "no-class", made: claimed("", "16Mi", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = nil }),
		page: "no persistent volumes available for this claim and no storage class is set"},
	{name: "clone-of-nothing", made: claimed("rootcellar", "64Mi", from("PersistentVolumeClaim", "no-class")),
		words: []string{"no-class"}, page: "the PVC DataSource <name> must have a status of Bound"},
	{name: "clone-smaller", made: claimed("rootcellar", "32Mi", from("PersistentVolumeClaim", "source")),
		page: "new PVC request must be greater than or equal in size"},
	{name: "clone-of-other-pool", words: []string{"is in pool reflink", "the class says default", "in the pool of its source"},
		made: func(s *scenario, name string) string {
			return claimed(s.Class(parameters{"pool": "default"}), "64Mi", from("PersistentVolumeClaim", "source"))(s, name)
		}},
	{name: "clone-elsewhere", made: onNode2("rootcellar", "64Mi", from("PersistentVolumeClaim", "source")),
		page: "<id> is in pool <pool>, which is not on this node; ...", words: []string{"steered"}},
	{name: "pod-of-other-node", page: "node(s) didn't match PersistentVolume's node affinity", read: events("Pod"),
		made: func(s *scenario, name string) string {
			s.pod(name, with("source", "/data"), at(node2))
			return ""
		}},
	{name: "pod-of-other-pool", page: noFreeStorage, read: events("Pod"),
		made: func(s *scenario, name string) string {
			s.Claim(name, s.Class(parameters{"pool": "fast"}), "16Mi")
			s.pod(name, with(name, "/data"), at(node1))
			return ""
		}},
	{name: "second-pod", proven: onePodAtATime},
	{name: "user", proven: strangersStayOut, page: "Permission denied"},
}

var inSnapshots = []mistake{
	{name: "copy-by-bytes", made: snapshotted("rootcellar", "used"), read: described("volumesnapshot"),
		words: []string{"pool default is on ext4", "copy: allowed permits it"}},
	{name: "restore-smaller", made: claimed("rootcellar", "32Mi", from("VolumeSnapshot", "taken")),
		page: "requested volume size <bytes> is less than the size <bytes> for the source snapshot"},
	{name: "restore-elsewhere", made: onNode2("rootcellar", "64Mi", from("VolumeSnapshot", "taken")),
		page: "<id> is in pool <pool>, which is not on this node; ...", words: []string{"steered"}},
	{name: "no-snapshot-class", made: snapshotted("rootcelar", "source"), read: described("volumesnapshot"),
		words: []string{"rootcelar"}, page: `volumesnapshotclass.snapshot.storage.k8s.io "<name>" not found`},
	{name: "no-default-snapshot-class", read: described("volumesnapshot"), page: "cannot find default snapshot class",
		made: snapshotOfNoClass},
	{name: "other-driver", read: described("volumesnapshot"), made: otherDriver,
		words: []string{"Snapshot Class Name:", "-other-driver"}, page: "Ready To Use: false"},
	{name: "no-controller", proven: snapshotOfNobody, page: "Ready To Use: false"},
}

var inUse = []mistake{
	{name: "claim-of-a-pod", read: described("pvc"), words: []string{"Terminating", "Used By:", "claim-of-a-pod"},
		made: func(s *scenario, name string) string { return s.Kubectl("delete", "pvc", name, "--wait=false") }},
	{name: "volume-of-a-pod", words: []string{"is published at", "delete the pods"},
		made: func(s *scenario, _ string) string { return s.failsInDriver("volume", "delete", s.id("source")) }},
	{name: "no-volume", words: []string{"does not exist", "rootcellar volume list"},
		made: func(s *scenario, _ string) string {
			id := s.id("source")
			return s.failsInDriver("volume", "delete", id[:len(id)-32]+strings.Repeat("0", 32))
		}},
	{name: "name-of-a-volume", words: []string{"not the id of a volume", "rootcellar volume show prints it"},
		made: func(s *scenario, _ string) string {
			return s.failsInDriver("volume", "delete", s.volume("source").Name)
		}},
	{name: "served-pool", words: []string{"is not lost", poolPath("reflink"), "take its disk away first"},
		made: func(s *scenario, _ string) string { return s.failsInDriver("pool", "retire", s.id("source")) }},
	{name: "fixed-size", page: "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
		made: asked("source", "128Mi")},
	{name: "shrink", made: asked("grows", "32Mi"), words: []string{`"grows"`, "requests.storage", "can not be less than status.capacity"}},
	{name: "growth", read: func(s *scenario, _ string) string { return events("Pod")(s, "grows") },
		words: []string{"OutOfRange", "pool quota has free space for", "not for 1099444518912 bytes", "free space, delete volumes"},
		made: func(s *scenario, _ string) string {
			s.ask("grows", "1Ti")
			return ""
		}},
}

// inPools has pools that the configuration names; `pool list`, `check` and the driver print the same reasons.
var inPools = []mistake{
	{name: "tmpfs", made: pooled(""), words: []string{"pool tmpfs:", "it is on tmpfs", "use XFS, ext4 or btrfs"}},
	{name: "overlay", made: pooled(""), words: []string{"pool overlay:", "it is on overlay", "use XFS, ext4 or btrfs"}},
	{name: "nowhere", made: pooled(""), words: []string{"pool nowhere:", "nothing is at its path", "make the directory or mount the disk"}},
	{name: "unmounted", made: pooled(",require-mount"), words: []string{"pool unmounted:", "nothing is mounted at its path", "mount the disk"}},
	{name: "full", made: pooled(""), words: []string{"pool full:", "its path holds no pool", "rootcellar pool init"}},
	{name: "not-empty", words: []string{mistakenPath("full"), "it holds \"file\"", "a pool is made in an empty one"},
		made: func(s *scenario, _ string) string { return s.failsInDriver("pool", "init", mistakenPath("full")) }},
	{name: "foreign", made: pooled(""), words: []string{"pool foreign:", "of node elsewhere", "rootcellar pool adopt"}},
}

var inInstallations = []mistake{
	{name: "value", made: rendered("--set", "poolz=1"), words: []string{"poolz"}, page: unknownValue},
	{name: "value-of-a-class", made: rendered("--set-json", `storageClasses=[{"name":"a","parameters":{"gruop":"1"}}]`),
		words: []string{"/storageClasses/0/parameters", "gruop"}, page: unknownValue},
	{name: "class-of-several-pools", made: rendered("--set-json", `pools=[{"name":"a"},{"name":"b"}]`, "--set-json", `storageClasses=[{"name":"c"}]`),
		words: []string{"StorageClass c", "names no pool", "there are 2", "set its pool"}},
	{name: "class-of-no-pool", made: rendered("--set-json", `storageClasses=[{"name":"c","pool":"b"}]`),
		words: []string{"StorageClass c", "called b", "there are: default"}},
	{name: "two-defaults", made: rendered("--set-json", `storageClasses=[{"name":"a","default":true},{"name":"b","default":true}]`),
		words: []string{"StorageClasses a and b", "a cluster has one"}},
	{name: "second-release", words: []string{"cannot be imported into the current release", `current value is "rootcellar"`},
		made: func(s *scenario, name string) string {
			return fails("helm", "install", name, chart, "--namespace", s.Namespace, "--dry-run=server")(s, name)
		}},
	{name: "restricted", made: restricted, page: "violates PodSecurity", words: []string{"restricted", "privileged"},
		read: func(s *scenario, name string) string {
			return eventsIn(s, s.Namespace+"-"+name, "DaemonSet", "rootcellar")
		}},
	{name: "image", page: "ErrImagePull", read: events("Pod"), words: []string{"registry.example/rootcellar:9.9.9", "not found"},
		made: func(s *scenario, name string) string {
			s.pod(name, func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "registry.example/rootcellar:9.9.9" })
			return ""
		}},
	{name: "log-level", words: []string{"RUST_LOG", `"verbose"`, "error, warn, info, debug or trace"}, read: logs,
		made: func(s *scenario, name string) string {
			s.pod(name, func(pod *corev1.Pod) {
				main := &pod.Spec.Containers[0]
				main.Image = driverImage
				main.Command = []string{"/rootcellar", "serve", "--endpoint=unix:///csi.sock", "--node=node1", "--kubelet-dir=/proc"}
				main.Env = []corev1.EnvVar{{Name: "RUST_LOG", Value: "verbose"}}
			})
			return ""
		}},
	{name: "kubelet-dir", proven: driverAway, page: "driver name csi.rootcellar.dev not found in the list of registered CSI drivers"},
	{name: "uninstalled-before-claims", proven: uninstalledAndBack},
	{name: "terminating", proven: driverAway, page: "Stopping container <name>"},
}

var chart = filepath.Join(harness.Root, "deploy/chart")

type parameters = map[string]string

// options sets the mount options of a class.
func options(all ...string) func(*storagev1.StorageClass) {
	return func(class *storagev1.StorageClass) { class.MountOptions = all }
}

// byKey allows node1 by a key that is not the driver's.
func byKey(key string) func(*storagev1.StorageClass) {
	return func(class *storagev1.StorageClass) {
		only(node1.name)(class)
		class.AllowedTopologies[0].MatchLabelExpressions[0].Key = key
	}
}

// ofClass makes a claim of a class with these parameters, and its pod.
func ofClass(given parameters, changes ...func(*storagev1.StorageClass)) func(*scenario, string) string {
	return func(s *scenario, name string) string {
		s.Helper()
		return claimed(s.Class(given, changes...), "16Mi")(s, name)
	}
}

// sentByClass makes a claim of a class with these parameters that goes to node1, although node1 does not fit.
func sentByClass(given parameters) func(*scenario, string) string {
	return func(s *scenario, name string) string {
		s.Helper()
		return sent(s.Class(given), "16Mi")(s, name)
	}
}

func sent(class, size string) func(*scenario, string) string {
	return func(s *scenario, name string) string {
		s.Helper()
		s.Claim(name, class, size, sentTo(node1))
		return ""
	}
}

// claimed makes a claim and its pod, which goes to node1 if that fits.
func claimed(class, size string, changes ...func(*corev1.PersistentVolumeClaim)) func(*scenario, string) string {
	return func(s *scenario, name string) string {
		s.Helper()
		s.Claim(name, class, size, changes...)
		s.pod(name, with(name, "/data"), prefers(node1))
		return ""
	}
}

// onNode2 makes a claim and its pod on node2, and the source is on node1.
func onNode2(class, size string, changes ...func(*corev1.PersistentVolumeClaim)) func(*scenario, string) string {
	return func(s *scenario, name string) string {
		s.Helper()
		s.Claim(name, class, size, changes...)
		s.pod(name, with(name, "/data"), at(node2))
		return ""
	}
}

// prefers has the scheduler choose the node if it may.
func prefers(n node) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{n.name}},
		}}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: term}},
		}}
	}
}

func snapshotOfNoClass(s *scenario, name string) string {
	s.Helper()
	s.Apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %q}
spec: {source: {persistentVolumeClaimName: source}}`, name))
	return ""
}

func snapshotted(class, claim string) func(*scenario, string) string {
	return func(s *scenario, name string) string {
		s.Helper()
		s.snapshotBy(class, name, claim)
		return ""
	}
}

// otherDriver takes a snapshot by a class of another driver.
func otherDriver(s *scenario, name string) string {
	s.Helper()
	class := s.Namespace + "-" + name
	s.Apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: %q}
driver: other.example
deletionPolicy: Delete`, class))
	s.Cleanup(func() {
		_, _ = harness.Command(context.Background(), "kubectl", "delete", "volumesnapshotclass", class)
	})
	return snapshotted(class, "source")(s, name)
}

// asked has a claim ask for a size that the API server refuses.
func asked(claim, size string) func(*scenario, string) string {
	return func(s *scenario, _ string) string {
		s.Helper()
		return fails("kubectl", "--namespace", s.Namespace, "patch", "pvc", claim, "--patch", growth(size))(s, "")
	}
}

// fails returns the output of a command that must fail.
func fails(words ...string) func(*scenario, string) string {
	return func(s *scenario, _ string) string {
		s.Helper()
		out, err := s.shell(words[0], words[1:]...)
		if err == nil {
			s.Errorf("%q succeeds: %s", words, out)
		}
		return out
	}
}

func rendered(arguments ...string) func(*scenario, string) string {
	return fails(append([]string{"helm", "install", "rendered", chart, "--dry-run=server"}, arguments...)...)
}

// failsInDriver returns the output of the driver's binary on node1, which must fail.
func (s *scenario) failsInDriver(arguments ...string) string {
	s.Helper()
	out, err := s.inDriver(node1, arguments...)
	if err == nil {
		s.Errorf("rootcellar %q succeeds: %s", arguments, out)
	}
	return out
}

// id returns the id of a claim's volume.
func (s *scenario) id(claim string) string {
	s.Helper()
	return s.volume(claim).Spec.CSI.VolumeHandle
}

// mistakenPath returns the path on node1 of a directory that cannot be served.
func mistakenPath(name string) string { return poolPath("mistaken/" + name) }

// pooled has the configuration name a pool that cannot be served.
func pooled(options string) func(*scenario, string) string {
	return func(s *scenario, name string) string {
		s.Helper()
		return s.failsInDriver("pool", "list", "--pool", name+"="+mistakenPath(name)+options)
	}
}

// noPools makes directories that cannot be served. /var on node1 is an overlay.
func (s *scenario) noPools() {
	s.Helper()
	dir, images := mistakenPath(""), filepath.Join(harness.Run, node1.name)
	script := fmt.Sprintf(`mkdir -p %[1]s/tmpfs %[1]s/overlay %[1]s/unmounted %[1]s/full %[1]s/foreign
mount -t tmpfs tmpfs %[1]s/tmpfs
for name in full foreign; do
    truncate -s 64M %[2]s/$name.img
    mkfs.ext4 -q %[2]s/$name.img
    mount -o loop %[2]s/$name.img %[1]s/$name
done
: >%[1]s/full/file`, dir, images)
	s.Cleanup(func() {
		remove := fmt.Sprintf("umount %[1]s/tmpfs %[1]s/full %[1]s/foreign; rm -r %[1]s %[2]s/full.img %[2]s/foreign.img", dir, images)
		words := node1.enter("sh", "-euc", remove)
		if _, err := harness.Command(context.Background(), words[0], words[1:]...); err != nil {
			s.Error(err)
		}
	})
	_, err := s.on(node1, "sh", "-euc", script)
	s.Must(err)
	_, err = s.inDriver(node1, "pool", "init", mistakenPath("foreign"), "--node", "elsewhere")
	s.Must(err)
}

// restricted applies the chart's DaemonSet in a namespace that allows no privileged pod.
func restricted(s *scenario, name string) string {
	s.Helper()
	space := s.Namespace + "-" + name
	spaces := harness.Client.CoreV1().Namespaces()
	labels := map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	_, err := spaces.Create(s.ctx(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space, Labels: labels}}, metav1.CreateOptions{})
	s.Must(err)
	s.Cleanup(func() { _ = spaces.Delete(context.Background(), space, metav1.DeleteOptions{}) })
	objects, err := s.shell("helm", "template", "rootcellar", chart, "--namespace", space, "--kube-version", "1.37.2",
		"--show-only", "templates/serviceaccount.yaml", "--show-only", "templates/daemonset.yaml")
	s.Must(err)
	(&scenario{harness.In(s.T, space)}).Apply(objects)
	return ""
}

// events reads the events of the object that has the mistake's name.
func events(kind string) func(*scenario, string) string {
	return func(s *scenario, name string) string { return eventsIn(s, s.Namespace, kind, name) }
}

func eventsIn(s *scenario, namespace, kind, name string) string {
	list, err := harness.Client.CoreV1().Events(namespace).List(s.ctx(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name,
	})
	s.Must(err)
	var lines []string
	for _, event := range list.Items {
		lines = append(lines, event.Reason+": "+event.Message)
	}
	return strings.Join(lines, "\n")
}

// described reads the object of the mistake's name as `kubectl describe` shows it, with its events and without alignment.
func described(kind string) func(*scenario, string) string {
	return func(s *scenario, name string) string {
		return strings.Join(strings.Fields(s.Kubectl("describe", kind, name)), " ")
	}
}

func logs(s *scenario, name string) string {
	out, err := s.shell("kubectl", "--namespace", s.Namespace, "logs", name)
	if err != nil {
		return err.Error()
	}
	return out
}

// pageLines returns the lines of the messages in docs/troubleshooting.md.
func (s *scenario) pageLines() []string {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root, "docs/troubleshooting.md"))
	s.Must(err)
	var lines []string
	for _, block := range regexp.MustCompile("(?ms)^```(?:text|kubernetes)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		lines = append(lines, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	return lines
}

// varies are the parts of a line of the page that a message may have in another way.
var varies = regexp.MustCompile(`<[a-z-]+>`)

// lacks returns the first of the words and the page's line that a message lacks, or an empty string.
func (m mistake) lacks(message string) string {
	for _, word := range m.words {
		if !strings.Contains(message, word) {
			return fmt.Sprintf("%q", word)
		}
	}
	fixed := varies.Split(strings.TrimSuffix(m.page, " ..."), -1)
	for i := range fixed {
		fixed[i] = regexp.QuoteMeta(fixed[i])
	}
	if !regexp.MustCompile(strings.Join(fixed, ".*")).MatchString(message) {
		return fmt.Sprintf("%q", m.page)
	}
	return ""
}

// answers makes mistakes, and waits until each message has its words.
func (s *scenario) answers(all []mistake) {
	s.Helper()
	page := s.pageLines()
	waiting := map[string]func() string{}
	for _, m := range all {
		if m.page != "" && !slices.Contains(page, m.page) {
			s.Errorf("%s: docs/troubleshooting.md has no line %q", m.name, m.page)
		}
		if m.proven != nil {
			continue
		}
		said := m.made(s, m.name)
		read := m.read
		if read == nil && said == "" {
			read = events("PersistentVolumeClaim")
		}
		waiting[m.name] = func() string {
			if read != nil {
				said = read(s, m.name)
			}
			if lacks := m.lacks(said); lacks != "" {
				return lacks + " is not in:\n" + said
			}
			s.Logf("%s:\n%s", m.name, said)
			return ""
		}
	}
	for end := time.Now().Add(harness.Patience); len(waiting) > 0; time.Sleep(time.Second) {
		late := time.Now().After(end)
		for name, complaint := range waiting {
			switch complaint := complaint(); {
			case complaint == "":
				delete(waiting, name)
			case late:
				s.Errorf("%s: %s", name, complaint)
			}
		}
		if late {
			return
		}
	}
}

// Proves: K10.
func mistakesBeforeCRDs(s *scenario) { s.answers(withoutCRDs) }

// mistakesAreAnswered has a volume on ext4 and one on XFS, both on node1, and one that its class lets grow.
//
// Proves: K10.
func mistakesAreAnswered(s *scenario) {
	s.noPools()
	xfs := s.Class(parameters{"pool": "reflink"})
	for name, class := range map[string]string{"used": "rootcellar", "source": xfs, "grows": s.quotaClass("auto"), "claim-of-a-pod": "rootcellar"} {
		s.Claim(name, class, "64Mi")
		s.pod(name, with(name, "/data"), at(node1))
	}
	s.running("source")
	s.take("taken", "source")
	for _, name := range []string{"used", "grows", "claim-of-a-pod"} {
		s.running(name)
	}
	s.answers(mistakes)
	claims, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).List(s.ctx(), metav1.ListOptions{})
	s.Must(err)
	for _, claim := range claims.Items {
		isSource := slices.Contains([]string{"used", "source", "grows", "claim-of-a-pod"}, claim.Name)
		if bound := claim.Spec.VolumeName != ""; bound != isSource {
			s.Errorf("claim %s: %s %s", claim.Name, claim.Status.Phase, claim.Spec.VolumeName)
		}
	}
}
