package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// Proves: F11.
func finished(s *scenario) {
	m := s.extra("finished", "1G")
	s.claim("deleted", "late", naming(m.name))
	volume := s.bound("deleted", m)
	file := s.write(m, volume)
	s.claim("source", "late", naming(m.name))
	s.bound("source", m)
	content := s.take("taken", "source")
	s.uncontrol()
	m.lose(s)
	s.claim("waits", "late", naming(m.name))
	s.Kubectl("delete", "pvc", "deleted", "--wait=false")
	s.Kubectl("delete", "volumesnapshot", "taken", "--wait=false")
	s.Eventually("the volume is released", harness.Patience, func() string {
		if found := s.volume(volume.Name); found.Status.Phase != corev1.VolumeReleased {
			return string(found.Status.Phase)
		}
		return ""
	})
	s.Eventually("the content is in deletion", harness.Patience, func() string {
		if s.content(content).GetDeletionTimestamp() == nil {
			return "not yet"
		}
		return ""
	})
	s.control(losing...)
	s.gone("pv", volume.Name)
	s.gone("volumesnapshotcontent", content)
	s.gone("volumesnapshot", "taken")
	s.event("PersistentVolumeClaim", "waits", "ForgotNode")
	s.pod("user", []string{"waits"})
	s.scheduled("user", rig.node3)
	s.bound("waits", rig.node3)
	s.intact(file)
	m.back(s)
	s.event("Node", m.name, "VolumeWithoutPersistentVolume")
	s.intact(file)
}

// planned makes the plan with the lines of docs/nodes.md.
//
// Proves: F13, K1.
func planned(s *scenario) {
	m := s.extra("planned", "1G")
	s.set("db", "late", m)
	volume, key := s.volumeOf("db"), s.Namespace+"/data-db-0"
	s.claim("source", "late", naming(m.name))
	s.bound("source", m)
	content := s.take("taken", "source")
	s.uncontrol()
	s.Cleanup(func() { s.control(losing...) })
	m.lose(s)
	for _, other := range nodes() {
		s.Cleanup(other.provisioner.pause(s))
	}
	s.claim("waits", "late", naming(m.name))
	s.Kubectl("delete", "volumesnapshot", "taken", "--wait=false")
	s.Eventually("the content is in deletion", harness.Patience, func() string {
		if s.content(content).GetDeletionTimestamp() == nil {
			return "not yet"
		}
		return ""
	})
	page, err := os.ReadFile(filepath.Join(harness.Root, "docs/nodes.md"))
	s.Must(err)
	begin := "\nkubectl delete node \"$NODE\"\n"
	_, lines, found := strings.Cut(string(page), begin+"kubectl get pv,")
	lines, _, ended := strings.Cut("kubectl get pv,"+lines, "\n```\n")
	if !found || !ended {
		s.Fatal("docs/nodes.md has no lines after the deletion of a Node")
	}
	plan := filepath.Join(m.dir, "plan.sh")
	report, err := harness.Command(s.Context(), "sh", "-euc", `cd "$1"; NODE=$2 PATH=$3:$PATH; `+lines, "sh",
		m.dir, m.name, filepath.Dir(os.Getenv("FLEET")))
	s.Must(err)
	if !strings.Contains(report, "No driver was asked") || !strings.Contains(report, ": retain claim volume\n") {
		s.Errorf("the report: %s", report)
	}
	step := func(verb, step, object string) (string, error) {
		return harness.Command(s.Context(), "sh", plan, verb, step, object)
	}
	works := func(verb, name, object string) {
		s.Helper()
		_, err := step(verb, name, object)
		s.Must(err)
	}
	refuses := func(verb, name, object, reason string) {
		s.Helper()
		if out, err := step(verb, name, object); err == nil || !strings.Contains(out, reason) {
			s.Fatalf("%s %s %s: %v, %s", verb, name, object, err, out)
		}
	}
	refuses("check", "retain", key, "is 'Delete', not 'Retain'")
	refuses("do", "claim", key, "is 'Delete', not 'Retain'")
	works("do", "retain", key)
	works("do", "retain", key)
	works("undo", "retain", key)
	if found := s.volume(volume); found.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		s.Fatalf("after undo the policy is %s", found.Spec.PersistentVolumeReclaimPolicy)
	}
	works("do", "retain", key)
	refuses("do", "claim", key, "on node "+m.name)
	works("undo", "claim", key)
	s.evict("db")
	works("do", "claim", key)
	refuses("undo", "claim", key, "The claim was deleted")
	// The set has made it again, and no step touches the new one.
	s.Eventually("the claim is made again", harness.Patience, func() string {
		_, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.Context(), "data-db-0", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	works("do", "claim", key)
	s.TheClaim("data-db-0")
	refuses("undo", "retain", key, "the claim of "+volume)
	works("do", "volume", key)
	works("do", "volume", key)
	refuses("undo", "volume", key, "rootcellar volume manifest")
	works("do", "snapshot", "VolumeSnapshotContent/"+content)
	works("do", "forget", s.Namespace+"/waits")
	if node := s.TheClaim("waits").Annotations[selected]; node != "" {
		s.Errorf("the claim still names %s", node)
	}
	s.gone("volumesnapshot", "taken")
	m.register(s)
	refuses("do", "retain", s.Namespace+"/source", "node "+m.name+" is in the cluster")
}

// Proves: F9, F11.
func manyAbsent(s *scenario) {
	machines := []*machine{s.extra("many-1", "1G"), s.extra("many-2", "1G")}
	class := s.releasing()
	for i, m := range machines {
		s.set(fmt.Sprint("db", i), class, m)
	}
	s.claim("deleted", "late", naming(machines[0].name))
	volume := s.bound("deleted", machines[0])
	for _, m := range machines {
		m.lose(s)
	}
	s.Kubectl("delete", "pvc", "deleted", "--wait=false")
	for i := range machines {
		s.evict(fmt.Sprint("db", i))
		s.event("PersistentVolumeClaim", fmt.Sprint("data-db", i, "-0"), "TooManyNodesAbsent")
	}
	s.event("PersistentVolume", volume.Name, "TooManyNodesAbsent")
	for i := range machines {
		if found := s.volume(s.volumeOf(fmt.Sprint("db", i))); found.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
			s.Errorf("%s has the policy %s", found.Name, found.Spec.PersistentVolumeReclaimPolicy)
		}
	}
	before := s.volumeOf("db0")
	machines[1].back(s)
	s.elsewhere("db0", before)
	s.gone("pv", volume.Name)
}

// Proves: F12.
func differences(s *scenario) {
	m := s.extra("different", "1G")
	s.claim("alone", "late", naming(m.name))
	volume := s.bound("alone", m)
	s.Kubectl("patch", "pv", volume.Name, "--patch", `{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`)
	s.claim("empty", "late", naming(m.name))
	empty := s.bound("empty", m)
	s.Kubectl("patch", "pv", empty.Name, "--patch", `{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`)
	s.Kubectl("delete", "pvc", "alone", "--wait=false")
	s.Kubectl("delete", "pv", volume.Name)
	onNode := func(arguments ...string) {
		s.Helper()
		_, err := harness.Command(s.Context(), os.Getenv("DRIVER"), append(arguments, "--endpoint", m.socket())...)
		s.Must(err)
	}
	onNode("volume", "delete", empty.Spec.CSI.VolumeHandle)
	note := s.event("Node", m.name, "VolumeWithoutPersistentVolume")
	handle := volume.Spec.CSI.VolumeHandle
	pool, hash := handle[:strings.LastIndex(handle, "-")], handle[strings.LastIndex(handle, "-")+1:]
	inPod := "kubectl exec -n " + harness.System + " " + m.pod() + " -c driver -- /rootcellar volume delete "
	if !strings.Contains(note, inPod+hash+";; esac`") || strings.Contains(note, strings.TrimPrefix(pool, "v1-")) {
		s.Fatalf("the command names the volume of handle %s, and no pool: %s", handle, note)
	}
	note = s.event("PersistentVolume", empty.Name, "PersistentVolumeWithoutVolume")
	_, printed, _ := strings.Cut(note, "`")
	printed, _, _ = strings.Cut(printed, "`")
	if !s.reported(m.name) {
		s.Errorf("the page does not have it:\n%s", s.page("/nodes"))
	}
	onNode("volume", "delete", hash)
	// The API server keeps an object with another uid.
	claim, err := harness.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(s.Context(), "empty", metav1.GetOptions{})
	s.Must(err)
	other := strings.ReplaceAll(printed, string(claim.UID), string(empty.UID))
	if out, err := harness.Command(s.Context(), "sh", "-c", other); other == printed || err == nil {
		s.Fatalf("another object was deleted: %s: %s", other, out)
	}
	_, err = harness.Command(s.Context(), "sh", "-c", printed)
	s.Must(err)
	s.gone("pvc", "empty")
	s.Kubectl("delete", "pv", empty.Name, "--ignore-not-found", "--wait=false")
	s.Eventually("the reports are cleared", harness.Patience, func() string {
		if s.reported(m.name) {
			return s.page("/metrics")
		}
		return ""
	})
}

// printed returns the command in a note that has these words.
func (s *scenario) printed(note, words string) string {
	s.Helper()
	for i, part := range strings.Split(note, "`") {
		if i%2 == 1 && strings.Contains(part, words) {
			return part
		}
	}
	s.Fatalf("no command %q in: %s", words, note)
	return ""
}

// runs runs a printed command. The driver is reached through its socket instead of the pod, which does not run.
func (s *scenario) runs(printed string, m *machine) string {
	s.Helper()
	text := regexp.MustCompile("kubectl exec (?:-i )?-n "+harness.System+" "+m.pod()+" -c driver -- /rootcellar ([a-z]+ [a-z]+)").
		ReplaceAllString(printed, os.Getenv("DRIVER")+" $1 --endpoint "+m.socket())
	out, err := harness.Command(s.Context(), "sh", "-c", text)
	s.Must(err)
	return out
}

// page returns a page of the controller.
func (s *scenario) page(path string) string {
	out, err := harness.Command(s.Context(), "curl", "--silent", "--show-error", "http://127.0.0.1:9809"+path)
	s.Must(err)
	return out
}

// reported says whether the metrics name a difference on a node.
func (s *scenario) reported(node string) bool {
	for _, line := range strings.Split(s.page("/metrics"), "\n") {
		if strings.HasPrefix(line, "rootcellar_fleet_difference{") && strings.Contains(line, fmt.Sprintf("node=%q", node)) {
			return true
		}
	}
	return false
}
