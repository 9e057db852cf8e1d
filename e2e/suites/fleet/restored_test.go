package fleet

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rootcellar.dev/e2e/suites/harness"
)

// restored is the last stage, because the objects of others go back in time too.
var restored = []entry{
	{"an API server from an older backup leads to no deletion, and no command that deletes is printed", restoredServer},
}

// central is a program of the control plane, which control-plane.sh or the rig started.
type central struct {
	s         *scenario
	pid       int
	arguments []string
}

// find looks for a program among the processes of the cluster, which are the only ones here.
func (s *scenario) find(name string) *central {
	s.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	s.Must(err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		arguments := strings.Split(string(bytes.TrimRight(text, "\x00")), "\x00")
		if err != nil || filepath.Base(arguments[0]) != name {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		s.Must(err)
		return &central{s, pid, arguments}
	}
	s.Fatalf("%s does not run", name)
	return nil
}

func (c *central) signal(signal syscall.Signal) {
	c.s.Helper()
	c.s.Must(syscall.Kill(c.pid, signal))
}

// states returns the first letters of the states of its threads.
func (c *central) states() string {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", c.pid))
	var found strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if _, rest, _ := strings.Cut(string(text), ") "); err == nil && rest != "" {
			found.WriteByte(rest[0])
		}
	}
	return found.String()
}

// end kills the program. Its parent may leave a zombie.
func (c *central) end() {
	c.s.Helper()
	c.signal(syscall.SIGKILL)
	c.s.Eventually("the program ends", harness.Patience, func() string { return strings.Trim(c.states(), "Z") })
}

func (c *central) start() {
	launch(filepath.Base(c.arguments[0]), nil, c.arguments[0], c.arguments[1:]...)
}

// backup copies the data of etcd as a power cut would leave them, and returns the directory.
func (s *scenario) backup() string {
	s.Helper()
	etcd, to := s.find("etcd"), filepath.Join(harness.Run, "etcd-backup")
	etcd.signal(syscall.SIGSTOP)
	defer etcd.signal(syscall.SIGCONT)
	s.Eventually("etcd is stopped", harness.Patience, func() string { return strings.Trim(etcd.states(), "T") })
	_, err := harness.Command(s.Context(), "cp", "--archive", filepath.Join(harness.Run, "etcd"), to)
	s.Must(err)
	return to
}

// restore has the API server begin again with older data, and all its clients but the controller too, as the documentation
// of etcd asks for.
func (s *scenario) restore(backup string) {
	s.Helper()
	var clients []*central
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		clients = append(clients, s.find(name))
	}
	for _, c := range clients {
		c.end()
	}
	rig.snapshots.kill()
	server, etcd := s.find("kube-apiserver"), s.find("etcd")
	server.end()
	etcd.end()
	s.Must(os.RemoveAll(filepath.Join(harness.Run, "etcd")))
	s.Must(os.Rename(backup, filepath.Join(harness.Run, "etcd")))
	etcd.start()
	server.start()
	s.Eventually("the API server is ready", harness.Patience, func() string {
		if _, err := harness.Command(s.Context(), "kubectl", "get", "--raw", "/readyz"); err != nil {
			return err.Error()
		}
		return ""
	})
	for _, c := range clients {
		c.start()
	}
	s.snapshotController()
}

// restoredServer has volumes on a node of before the backup and on one of after it. The controller runs on with its view of
// before, and then begins again.
//
// Proves: F9, F11, F12.
func restoredServer(s *scenario) {
	class := s.releasing()
	m := s.extra("older", "1G")
	kept := s.holding("before", class, m)
	backup := s.backup()

	young := s.extra("younger", "1G")
	files := map[*machine][]string{young: {s.set("after", class, young)}, m: nil}
	later := []*corev1.PersistentVolume{s.volume(s.volumeOf("after"))}
	for i, on := range []*machine{m, m, m, m, young, young, young} {
		name := fmt.Sprint("later-", i)
		s.claim(name, "late", naming(on.name))
		volume := s.bound(name, on)
		files[on], later = append(files[on], s.write(on, volume)), append(later, volume)
	}
	intact := func() {
		for _, of := range files {
			for _, file := range of {
				s.intact(file)
			}
		}
	}
	began := time.Now()
	for _, n := range append(nodes(), m, young) {
		n.stop()
	}
	s.restore(backup)
	for _, volume := range later {
		if _, err := harness.Client.CoreV1().PersistentVolumes().Get(s.Context(), volume.Name, metav1.GetOptions{}); !missing(err) {
			s.Fatalf("%s is in the backup: %v", volume.Name, err)
		}
	}
	for _, n := range append(nodes(), m) {
		n.startDriver()
		n.startProvisioner()
		n.startSnapshotter()
	}
	// The machine runs, and nothing in the cluster knows it.
	young.startDriver()
	check := func() string {
		written := rig.fleet.seen(func(c *call) bool {
			return c.writes() && c.at.After(began) && !strings.HasSuffix(c.path, "/events") && !strings.Contains(c.path, "/configmaps")
		})
		if len(written) > 0 {
			return "the controller wrote" + listing(written)
		}
		intact()
		return s.released(kept)
	}
	s.Always("the controller writes nothing", 20*time.Second, check)
	s.control(rig.arguments...)
	s.Always("the next controller writes nothing", 10*time.Second, check)
	s.printsManifests(m)
	young.register(s)
	young.startProvisioner()
	young.startSnapshotter()
	s.printsManifests(young)
	s.Always("the controller writes nothing", 10*time.Second, check)
}

// deleting matches the commands that delete data or objects.
var deleting = regexp.MustCompile("(volume|snapshot|kubectl) delete|delete --raw")

// printsManifests waits until the volumes without objects of a node are reported, and checks that no command that deletes
// anything is printed.
func (s *scenario) printsManifests(m *machine) {
	s.Helper()
	s.Eventually("the volumes of "+m.name+" are reported", harness.Patience, func() string {
		if said := s.said("Node", m.name); !strings.Contains(said, "volume manifest") {
			return "it is said" + said
		}
		return ""
	})
	s.Always("no command that deletes is printed", 5*time.Second, func() string {
		if said := s.said("Node", m.name); deleting.MatchString(said) {
			return said
		}
		return ""
	})
}
