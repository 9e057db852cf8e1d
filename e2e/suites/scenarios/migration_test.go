package scenarios

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// migrations run on a cluster of their own, by `make e2e-migration`, with the disks of migration/disks.sh.
var migrations = slices.Concat(lost, interruptions, imports, fromLocalPath, sources, claims)

var imports = []entry{
	{"a hostPath PersistentVolume made by hand is imported under its claim, and exported again", importByHand},
}

const (
	// oldDisk is on each node the mount of a disk that the driver's pool shares with other provisioners.
	oldDisk = "/mnt/disk"
	// localPath is the directory of local-path-provisioner's volumes.
	localPath = oldDisk + "/local-path"
	// btrfsPath is the directory of those on a btrfs, which the class local-path-btrfs has.
	btrfsPath = "/mnt/btrfs/local-path"
	// newPool is the path of the pool `default`.
	newPool = oldDisk + "/rootcellar"
)

func TestMigration(t *testing.T) {
	t.Cleanup(harness.Count)
	s := &scenario{harness.In(t, metav1.NamespaceDefault)}
	s.install("--values", filepath.Join(harness.Root, "e2e/suites/migration/values.yaml"))
	s.installLocalPath()
	alone := len(lost) + len(interruptions)
	for _, entry := range migrations[:alone] {
		t.Run(entry.title, func(t *testing.T) { play(t, entry) })
	}
	t.Run("apart", func(t *testing.T) {
		for _, entry := range migrations[alone:] {
			t.Run(entry.title, func(t *testing.T) {
				t.Parallel()
				play(t, entry)
			})
		}
	})
}

// installLocalPath installs local-path-provisioner by its own manifest, with another directory, and adds a class whose
// volumes are of the type local, as k3s has it.
func (s *scenario) installLocalPath() {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(os.Getenv("PARTS"), "local-path.yaml"))
	s.Must(err)
	manifest := string(text)
	for _, change := range [][2]string{
		{`"/opt/local-path-provisioner"`, `"` + localPath + `", "` + btrfsPath + `"`},
		{"provisioner: rancher.io/local-path\n", "provisioner: rancher.io/local-path\nparameters: {nodePath: " + localPath + "}\n"},
	} {
		changed := strings.Replace(manifest, change[0], change[1], 1)
		if changed == manifest {
			s.Fatalf("the manifest of local-path-provisioner has no %q", change[0])
		}
		manifest = changed
	}
	s.Namespace = "local-path-storage"
	s.Apply(manifest)
	s.Apply(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local-path-local, annotations: {defaultVolumeType: local}}
provisioner: rancher.io/local-path
parameters: {nodePath: ` + localPath + `}
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local-path-btrfs}
provisioner: rancher.io/local-path
parameters: {nodePath: ` + btrfsPath + `}
volumeBindingMode: WaitForFirstConsumer
`)
	s.Kubectl("rollout", "status", "deployment/local-path-provisioner", "--timeout", harness.Patience.String())
}

// once runs the driver's binary in a pod on the node, and returns its output.
// It fails if the pod fails.
func (s *scenario) once(n node, arguments ...string) (string, error) {
	s.Helper()
	name := s.startOnce(n, arguments...)
	var phase corev1.PodPhase
	s.Eventually("pod "+name+" ends", harness.Patience, func() string {
		pod, err := harness.Client.CoreV1().Pods(s.Namespace).Get(s.ctx(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if phase = pod.Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			return ""
		}
		return fmt.Sprintf("%s %+v", phase, pod.Status.ContainerStatuses)
	})
	out := s.Kubectl("logs", name)
	s.deletePod(name)
	if phase != corev1.PodSucceeded {
		return out, fmt.Errorf("%q: %s", arguments, out)
	}
	return out, nil
}

// startOnce starts the pod and returns its name.
func (s *scenario) startOnce(n node, arguments ...string) string {
	s.Helper()
	privileged := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "once-"},
		Spec: corev1.PodSpec{
			NodeName:      n.name,
			HostPID:       true,
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name:            "rootcellar",
				Image:           s.driverPod(n).Spec.Containers[0].Image,
				Args:            append(arguments, "--host", "--endpoint", "unix:///var/lib/kubelet/plugins/"+harness.Driver+"/csi.sock"),
				SecurityContext: &corev1.SecurityContext{Privileged: &privileged},
			}},
		},
	}
	made, err := harness.Client.CoreV1().Pods(s.Namespace).Create(s.ctx(), pod, metav1.CreateOptions{})
	s.Must(err)
	return made.Name
}

// onceSays runs such a pod, which must succeed and print this.
func (s *scenario) onceSays(n node, text string, arguments ...string) string {
	s.Helper()
	out, err := s.once(n, arguments...)
	s.Must(err)
	if !strings.Contains(out, text) {
		s.Fatalf("%q: %q, without %q", arguments, out, text)
	}
	return out
}

// onceRefused runs such a pod, which must fail and print this.
func (s *scenario) onceRefused(n node, text string, arguments ...string) {
	s.Helper()
	if out, err := s.once(n, arguments...); err == nil || !strings.Contains(out, text) {
		s.Fatalf("%q: %v %q, without %q", arguments, err, out, text)
	}
}

// move is the way of one claim to a volume of the driver, and back: a new PersistentVolume for the same claim. The
// names of the steps are those of the facts about migrations.
type move struct {
	*scenario
	claim string
	home  node
	// path is the directory on the node.
	path string
	// before are the claim and its PersistentVolume.
	before corev1.PersistentVolumeClaim
	old    corev1.PersistentVolume
	id     string
	// plan is that of rootcellar-migrate. Without one, the scenario takes the steps itself.
	plan *plan
}

// moving prepares the move of a bound claim.
func (s *scenario) moving(claim string, home node) *move {
	s.Helper()
	old := s.volume(claim)
	m := &move{scenario: s, claim: claim, home: home, before: *s.TheClaim(claim), old: *old}
	switch {
	case old.Spec.HostPath != nil:
		m.path = old.Spec.HostPath.Path
	case old.Spec.Local != nil:
		m.path = old.Spec.Local.Path
	}
	return m
}

// retain is step 1.
func (m *move) retain() { m.policy(corev1.PersistentVolumeReclaimRetain) }

// policy sets the policy of the PersistentVolume and reads it back.
func (m *move) policy(policy corev1.PersistentVolumeReclaimPolicy) {
	m.Helper()
	m.Kubectl("patch", "pv", m.old.Name, "--patch", fmt.Sprintf(`{"spec":{"persistentVolumeReclaimPolicy":%q}}`, policy))
	if got := m.Kubectl("get", "pv", m.old.Name, "--output", "jsonpath={.spec.persistentVolumeReclaimPolicy}"); got != string(policy) {
		m.Fatalf("%s has the policy %s", m.old.Name, got)
	}
}

// drop deletes the PersistentVolume and leaves the claim, which is Lost then. It is step 3.
func (m *move) drop() {
	m.Helper()
	m.Kubectl("delete", "pv", m.old.Name, "--wait=false")
	m.Kubectl("patch", "pv", m.old.Name, "--type=merge", "--patch", `{"metadata":{"finalizers":null}}`)
	m.volumeGone(m.old.Name)
	m.claimIs(corev1.ClaimLost)
}

func (m *move) claimIs(phase corev1.PersistentVolumeClaimPhase) {
	m.Helper()
	m.Eventually(fmt.Sprintf("claim %s is %s", m.claim, phase), harness.Patience, func() string {
		if claim := m.TheClaim(m.claim); claim.Status.Phase != phase {
			return string(claim.Status.Phase)
		}
		return ""
	})
}

func (m *move) importArguments() []string {
	size := m.before.Spec.Resources.Requests[corev1.ResourceStorage]
	return []string{"volume", "import", m.path, "--pool", "default", "--name", m.old.Name,
		"--claim", m.Namespace + "/" + m.claim, "--size", size.String(), "--class", *m.before.Spec.StorageClassName}
}

// take imports the directory. It is step 4.
func (m *move) take() {
	m.Helper()
	m.taken(m.onceSays(m.home, m.path+" is volume ", m.importArguments()...))
}

// taken notes the id in the output of an import.
func (m *move) taken(out string) {
	m.Helper()
	_, rest, _ := strings.Cut(out, m.path+" is volume ")
	m.id, _, _ = strings.Cut(rest, " ")
	if notice := m.fileAt(m.path); !strings.Contains(notice, m.id) {
		m.Fatalf("at %s is %q", m.path, notice)
	}
}

// fileAt returns the text of a file of the node.
func (m *move) fileAt(path string) string {
	m.Helper()
	text, err := os.ReadFile(m.home.path(path))
	m.Must(err)
	return string(text)
}

// bind creates the new PersistentVolume, from the driver's manifest. It is step 5.
func (m *move) bind() {
	m.Helper()
	manifest, err := m.inDriver(m.home, "volume", "manifest", m.id, "--claim-uid", string(m.before.UID))
	m.Must(err)
	m.Apply(manifest)
	m.claimIs(corev1.ClaimBound)
	if got := m.volume(m.claim); got.Spec.CSI == nil || got.Spec.CSI.VolumeHandle != m.id || m.scenario.home(got) != m.home {
		m.Fatalf("the PersistentVolume is %+v", got.Spec)
	}
	m.sameClaim()
}

// sameClaim checks that the claim is the one of the beginning.
func (m *move) sameClaim() {
	m.Helper()
	claim := m.TheClaim(m.claim)
	was, is := m.before.Spec, claim.Spec
	if claim.UID != m.before.UID || was.String() != is.String() || claim.Status.Phase != corev1.ClaimBound {
		m.Fatalf("claim %s was\n%+v\nand is\n%+v", m.claim, m.before, claim)
	}
}

// unbind is the rollback of bind.
func (m *move) unbind() { m.drop() }

// giveBack is the rollback of take.
func (m *move) giveBack() {
	m.Helper()
	m.onceSays(m.home, "is the directory "+m.path+" now", "volume", "export", m.id)
}

// restore creates the old PersistentVolume again. It is the rollback of drop.
func (m *move) restore() {
	m.Helper()
	saved := m.old.DeepCopy()
	saved.ObjectMeta = metav1.ObjectMeta{Name: saved.Name, Labels: saved.Labels, Annotations: saved.Annotations}
	saved.Status = corev1.PersistentVolumeStatus{}
	saved.Spec.ClaimRef.ResourceVersion = ""
	saved.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	saved.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}
	text, err := json.Marshal(saved)
	m.Must(err)
	m.Apply(string(text))
	m.claimIs(corev1.ClaimBound)
	m.sameClaim()
}

// unretain is the rollback of retain.
func (m *move) unretain() { m.policy(m.old.Spec.PersistentVolumeReclaimPolicy) }

// seed fills the directory /data of a pod with files, links and modes, and returns what summary says about them.
func (s *scenario) seed(pod string) string {
	s.Helper()
	_, err := s.exec(pod, `cd /data && mkdir -p deep/er && dd if=/dev/urandom of=deep/blob bs=1M count=4 &&
		ln deep/blob deep/er/hard && ln -s ../blob deep/er/link && chmod 640 deep/blob && chown 1000:1001 deep &&
		chmod 2750 deep && mkfifo deep/pipe && for i in $(seq 200); do echo $i >deep/er/$i; done && sync`)
	s.Must(err)
	return s.summary(pod)
}

// summary describes each file below /data, with its checksum.
func (s *scenario) summary(pod string) string {
	s.Helper()
	// The size of a directory is its filesystem's affair.
	out, err := s.exec(pod, `cd /data && find . -type d -exec stat -c '%n %F %a %u:%g %h %Y' {} + | sort &&
		find . ! -type d -exec stat -c '%n %F %a %u:%g %h %s %Y' {} + | sort &&
		find . -type f -exec sha256sum {} + | sort`)
	s.Must(err)
	return out
}

// sameData checks that a pod finds the files of a summary.
func (s *scenario) sameData(pod, summary string) {
	s.Helper()
	s.running(pod)
	if got := s.summary(pod); got != summary {
		s.Fatalf("%s finds other files than before:\n%s\nand not\n%s", pod, got, summary)
	}
}

// handMade creates a PersistentVolume of this source on the node, with a claim that binds it, of a class without a
// provisioner. The changes are applied before.
func (s *scenario) handMade(claim string, n node, source corev1.PersistentVolumeSource, changes ...func(*corev1.PersistentVolume)) {
	s.Helper()
	class := "by-hand"
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace + "-" + claim},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource:        source,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName:              class,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{n.name},
				}}}},
			}},
		},
	}
	for _, change := range changes {
		change(volume)
	}
	_, err := harness.Client.CoreV1().PersistentVolumes().Create(s.ctx(), volume, metav1.CreateOptions{})
	s.Must(err)
	s.Claim(claim, class, "64Mi", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = volume.Name })
}

// discard deletes the claim and its volume under any policy.
func (m *move) discard() {
	m.Helper()
	m.policy(corev1.PersistentVolumeReclaimDelete)
	m.deleteClaim(m.claim)
	m.volumeGone(m.old.Name)
}

// refusedElsewhere checks that a directory on another filesystem stays, and that the message names the way.
func refusedElsewhere(s *scenario) {
	const elsewhere = "/mnt/elsewhere"
	_, err := s.on(node1, "mkdir", elsewhere)
	s.Must(err)
	s.onceRefused(node1, "`rootcellar-migrate claim`", "volume", "import", elsewhere, "--pool", "default", "--name", "other",
		"--size", "64Mi")
	_, err = s.on(node1, "rmdir", elsewhere)
	s.Must(err)
}

// importByHand follows all steps for one claim and a pod, and goes all the way back.
//
// Proves: IM1, IM2.
func importByHand(s *scenario) {
	path := oldDisk + "/" + s.Namespace
	_, err := s.on(node1, "mkdir", "-m", "0777", path)
	s.Must(err)
	s.handMade("data", node1, corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}})
	s.pod("worker", with("data", "/data"))
	s.running("worker")
	files := s.seed("worker")
	m := s.moving("data", node1)
	s.onceRefused(node1, path+" is in use: process ", m.importArguments()...)
	s.sameData("worker", files)
	m.retain()
	s.deletePod("worker")
	m.drop()
	s.onceSays(node1, path+" can become volume ", append(m.importArguments(), "--dry-run")...)
	refused := func(text, path, size string) {
		s.onceRefused(node1, text, "volume", "import", path, "--pool", "default", "--name", "other", "--size", size)
	}
	refused("which is more than the size", path, "1Mi")
	refused(", where the driver or the kubelet has its data", newPool+"/.rootcellar/trash", "64Mi")
	m.take()
	m.bind()
	s.pod("worker", with("data", "/data"))
	s.sameData("worker", files)
	// The repeated import changes nothing.
	id := m.id
	m.take()
	if m.id != id {
		s.Fatalf("volume %s is %s now", id, m.id)
	}
	s.deletePod("worker")
	m.unbind()
	m.giveBack()
	m.restore()
	s.pod("worker", with("data", "/data"))
	s.sameData("worker", files)
	s.deletePod("worker")
	s.deleteClaim("data")
	s.Kubectl("delete", "pv", m.old.Name)
	refusedElsewhere(s)
	_, err = s.on(node1, "rm", "-r", path)
	s.Must(err)
}
